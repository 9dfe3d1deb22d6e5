"""The partitions of a pinned instance, on their way in and out.

    claiming ──▶ owned ──▶ draining ──▶ releasing ──▶ gone

The instance says which partitions are *wanted* (none when it is stepping down); what is owned
and not wanted is drained, what is wanted and not there is claimed.  A partition that is on its
way out goes all the way out, and is claimed again if it is wanted by then.
"""

from __future__ import annotations

import msgspec

from headrace.errors import InvalidGroupConfigError
from headrace.groups.decisions.core.record import What
from headrace.groups.partitioned.core.decisions import InstanceOutput
from headrace.groups.partitioned.core.messages import (
    Abandon,
    ClaimPartition,
    Consume,
    Drain,
    ReleasePartition,
)
from headrace.groups.partitioned.core.pins import ClaimOwner, Refusal
from headrace.groups.partitioned.core.transitions import STAGE_TRANSITIONS, Stage, StageCause


class PinTimings(msgspec.Struct, frozen=True, kw_only=True):
    """How long an instance waits for what."""

    pin_ttl_ms: int = 5_000
    renew_every_ms: int = 1_500
    standby_retry_ms: int = 1_000
    claim_retry_ms: int = 200
    request_timeout_ms: int = 1_000
    drain_limit_ms: int = 10_000
    step_down_hold_ms: int = 3_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise InvalidGroupConfigError(f"{name} is {getattr(self, name)}; it must be > 0")
        if self.renew_every_ms * 2 > self.pin_ttl_ms:
            raise InvalidGroupConfigError(
                f"renew_every_ms is {self.renew_every_ms}; pin_ttl_ms ({self.pin_ttl_ms}) "
                "must leave time for two renewals"
            )


ACTIVE = (Stage.OWNED, Stage.DRAINING)


class Part:
    """A partition that the instance owns, claims or gives back."""

    __slots__ = ("at_ms", "since_ms", "stage", "token", "waits_for")

    def __init__(self, stage: Stage, token: int, since_ms: int) -> None:
        self.stage = stage
        self.token = token
        self.since_ms = since_ms  # when this token was heard of
        self.at_ms = 0  # when to ask again, or when a drain is cut off
        self.waits_for = ""


class Partitions:
    """What a pinned instance owns, claims and gives back."""

    def __init__(self, out: InstanceOutput, timings: PinTimings) -> None:
        self._out = out
        self._timings = timings
        self.pin_token = 0
        self.wanted: frozenset[int] = frozenset()
        self.parts: dict[int, Part] = {}
        self.tokens_seen: dict[int, int] = {}

    # --- reading -----------------------------------------------------------------------

    @property
    def owned(self) -> dict[int, int]:
        """Partitions that events are handed out of, with their tokens."""
        return {p: part.token for p, part in self.parts.items() if part.stage in ACTIVE}

    @property
    def as_wanted(self) -> bool:
        """Whether exactly what is wanted is owned, and nothing else is under way."""
        owned = {p for p, part in self.parts.items() if part.stage is Stage.OWNED}
        return owned == self.wanted == self.parts.keys()

    @property
    def waiting(self) -> bool:
        """Whether a claim was refused and is to be made again."""
        return any(p.stage is Stage.CLAIMING and p.waits_for for p in self.parts.values())

    @property
    def wake_at_ms(self) -> int | None:
        """When a tick has something to do."""
        times = (part.at_ms for part in self.parts.values() if part.stage is not Stage.OWNED)
        return min(times, default=None)

    def has(self, partition: int, token: int, stage: Stage | None = None) -> bool:
        """Whether the partition is held under this token (and, if given, at this stage)."""
        part = self.parts.get(partition)
        if part is None or part.token != token or part.stage is Stage.CLAIMING:
            return False
        return stage is None or part.stage is stage

    def explain(self) -> list[str]:
        """What is under way, one line each."""
        return [
            f"partition {partition}: {part.stage.value} {part.waits_for}".rstrip()
            for partition, part in sorted(self.parts.items())
            if part.stage is not Stage.OWNED
        ]

    # --- in ----------------------------------------------------------------------------

    def want(self, wanted: frozenset[int]) -> None:
        """Give back what moved away, claim what is new; leave the rest alone."""
        self.wanted = wanted
        for partition, part in list(self.parts.items()):
            if partition not in wanted and part.stage is Stage.OWNED:
                self.drain(partition, "the config gives it to another member")
        for partition in sorted(wanted - self.parts.keys()):
            self._claim(partition)

    def claimed(self, partition: int, token: int) -> None:
        """The catalog granted a claim."""
        part = self.parts.get(partition)
        if token < self.tokens_seen.get(partition, 0):
            return  # a late answer; the partition has changed hands since
        if self.has(partition, token):
            return  # the answer to a request that was made twice
        self.tokens_seen[partition] = token
        if partition in self.wanted:
            if part is not None and part.stage in ACTIVE:
                self._out.do(Abandon(partition, part.token))
            self._move(partition, StageCause.GRANTED, token)
            self._out.do(Consume(partition, token))
            self._out.decide(What.ASSIGNED, "they are its own by the config", partition)
        else:  # no longer ours by the time the answer came
            self._release(partition, StageCause.IN_VAIN, token)

    def denied(self, partition: int, refusal: Refusal, owner: ClaimOwner | None) -> None:
        """The catalog refused a claim, for now."""
        part = self.parts.get(partition)
        if part is None or part.stage is not Stage.CLAIMING:
            return
        if partition not in self.wanted:
            self._move(partition, StageCause.NOT_WANTED)
            return
        part.at_ms = self._out.now_ms + self._timings.claim_retry_ms
        waits_for = refusal.value if owner is None else f"for {owner.member}/{owner.instance}"
        if part.waits_for != waits_for:
            part.waits_for = waits_for
            reason = refusal.value if owner is None else f"{refusal.value} {waits_for}"
            other = "" if owner is None else owner.member
            self._out.decide(What.WAITS, reason, partition, other=other)

    def give_back_unknown(self, claims: tuple[tuple[int, int], ...]) -> None:
        """Of the claims that the catalog has under this pin, give back those never heard of."""
        for partition, token in claims:
            if partition not in self.parts and token >= self.tokens_seen.get(partition, 0):
                self.tokens_seen[partition] = token
                self._release(partition, StageCause.IN_VAIN, token)

    def lose_all_but(self, claims: tuple[tuple[int, int], ...], asked_ms: int) -> None:
        """What was owned when the catalog was asked, and is not among its claims, was taken."""
        for partition, part in list(self.parts.items()):
            known = part.stage in ACTIVE and part.since_ms <= asked_ms
            if known and (partition, part.token) not in claims:
                self.lost(partition)

    def retry(self) -> None:
        """Ask at once for what was refused."""
        for partition, part in list(self.parts.items()):
            if part.stage is Stage.CLAIMING and part.waits_for and partition in self.wanted:
                part.at_ms = self._out.now_ms + self._timings.request_timeout_ms
                self._out.do(ClaimPartition(partition, self.pin_token))

    # --- out ---------------------------------------------------------------------------

    def drain(self, partition: int, why: str) -> None:
        """Let the consumer finish what it holds."""
        part = self._move(partition, StageCause.MOVES)
        part.at_ms = self._out.now_ms + self._timings.drain_limit_ms
        self._out.do(Drain(partition, part.token))
        self._out.decide(What.MOVES, why, partition, passing=True)

    def drained(self, partition: int) -> None:
        """Nothing is in flight any more."""
        self._release(partition, StageCause.DRAINED)

    def released(self, partition: int) -> None:
        """The claim is off our hands; by now it may be wanted again."""
        self._move(partition, StageCause.RELEASED)
        if partition in self.wanted:
            self._claim(partition)

    def lost(self, partition: int) -> None:
        """The catalog says that the partition is someone else's."""
        part = self._move(partition, StageCause.LOST)
        if part.stage in ACTIVE:
            self._out.do(Abandon(partition, part.token))
            self._out.decide(What.FENCED, "taken from it: its tokens are stale", partition)
        if partition in self.wanted:
            self._claim(partition, after_ms=self._timings.claim_retry_ms)

    def leave(self, why: str, *, forced: bool) -> None:
        """Want nothing more: finish everything or, forced, cut everything off."""
        self.wanted = frozenset()
        for partition, part in list(self.parts.items()):
            if part.stage is Stage.CLAIMING:
                self._move(partition, StageCause.NOT_WANTED)
            elif part.stage in ACTIVE and forced:
                self._cut_off(partition, why)
            elif part.stage is Stage.OWNED:
                self.drain(partition, why)

    def abandon_all(self, why: str) -> None:
        """Drop everything at once: the pin under which it was claimed is gone."""
        for partition, part in self.parts.items():
            if part.stage in ACTIVE:
                self._out.do(Abandon(partition, part.token))
                self._out.decide(What.FENCED, why, partition)
        self.forget()

    def forget(self) -> None:
        """Forget all partitions: there is no pin."""
        for partition in list(self.parts):
            self._move(partition, StageCause.PIN_LOST)

    # --- time --------------------------------------------------------------------------

    def tick(self) -> None:
        """Ask again what was not answered; cut off drains that take too long."""
        now = self._out.now_ms
        for partition, part in list(self.parts.items()):
            if part.stage is Stage.OWNED or now < part.at_ms:
                continue
            match part.stage:
                case Stage.CLAIMING if partition in self.wanted:
                    part.at_ms = now + self._timings.request_timeout_ms
                    self._out.do(ClaimPartition(partition, self.pin_token))
                case Stage.CLAIMING:
                    self._move(partition, StageCause.NOT_WANTED)
                case Stage.DRAINING:
                    self._cut_off(partition, "it did not finish within the limit")
                case _:
                    self._ask_release(partition, part)

    # --- internals ---------------------------------------------------------------------

    def _claim(self, partition: int, after_ms: int = 0) -> None:
        part = self._move(partition, StageCause.WANTED)
        part.at_ms = self._out.now_ms + after_ms
        if not after_ms:
            part.at_ms += self._timings.request_timeout_ms
            self._out.do(ClaimPartition(partition, self.pin_token))

    def _cut_off(self, partition: int, why: str) -> None:
        self._out.do(Abandon(partition, self.parts[partition].token))
        self._out.decide(What.FENCED, why, partition)
        self._release(partition, StageCause.CUT_OFF)

    def _move(self, partition: int, cause: StageCause, token: int | None = None) -> Part:
        """Take the step that the table has for it, with a new token if one is given."""
        part = self.parts.get(partition)
        then = STAGE_TRANSITIONS[Stage.ABSENT if part is None else part.stage, cause]
        if then is Stage.ABSENT:
            return self.parts.pop(partition)
        if part is None or token is not None:
            part = self.parts[partition] = Part(then, token or 0, self._out.now_ms)
        part.stage = then
        return part

    def _release(self, partition: int, cause: StageCause, token: int | None = None) -> None:
        self._ask_release(partition, self._move(partition, cause, token))

    def _ask_release(self, partition: int, part: Part) -> None:
        part.at_ms = self._out.now_ms + self._timings.request_timeout_ms
        self._out.do(ReleasePartition(partition, part.token))
