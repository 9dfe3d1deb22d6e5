"""An instance of a member: when it stands by, when it is pinned, what it claims and gives back.

Theory of operation
-------------------
An instance hears events and answers with effects for its runtime to carry out.  Its phases:

    waiting ──▶ standing by ──▶ pinned ──▶ stepping down ──▶ standing by, waiting or closed
       ▲             │             │
       └─ not a      └─────────────┴── pin lost: everything is abandoned at once
          member

Under a pin it brings what it owns in line with what the config gives its member.  A partition is

    claiming ──▶ owned ──▶ draining ──▶ releasing ──▶ gone

*No flapping.*  A change of config never touches the pin: the active instance gives back only
what moved and claims only what is new.  The pin is given up for a reason that is the instance's
own: its member was dropped, it was told to step down, its consumer has stalled, it closes.
After a step-down it holds back for a while, so that a standby is first.

*Moving.*  A partition is drained, then released with its progress; the next owner's claim is
refused until then, or until the pin has expired (see ``pins``).  A drain that takes too long is
cut off: what is in flight is abandoned, which means that its acks no longer count.

*Lost answers.*  A request that is not answered in time is made again; every request can be
repeated without harm.  A late or repeated answer is recognised by its token and changes nothing.
A claim that was made but never heard of shows up with the next renewal and is given back.

*Doubt.*  When the pin was not renewed for its time to live by the instance's own clock, it acts
as if the pin were lost.  The tokens make that a courtesy, not a matter of safety.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec

from headrace.errors import GroupUpdateError, InvalidGroupConfigError, MembershipEventError
from headrace.groups.partitioned.config import GroupConfig, check_change
from headrace.groups.partitioned.messages import (
    Abandon,
    AcquirePin,
    ClaimDenied,
    Claimed,
    ClaimLost,
    ClaimPartition,
    Close,
    ConfigSeen,
    Consume,
    Decision,
    Drain,
    Drained,
    Effect,
    Event,
    MemberStalled,
    Phase,
    PinFreed,
    PinGranted,
    PinHeld,
    PinLost,
    PinReleased,
    PinRenewed,
    Released,
    ReleasePartition,
    ReleasePin,
    RenewPin,
    StepDownAsked,
    Tick,
    Verdict,
)
from headrace.groups.partitioned.pins import Refusal

DECISIONS_MAX = 256


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


class _Stage(Enum):
    CLAIMING = "claiming"
    OWNED = "owned"
    DRAINING = "draining"
    RELEASING = "releasing"


class _Part:
    """A partition that the instance has to do with."""

    __slots__ = ("at_ms", "stage", "token", "waits_for")

    def __init__(self, stage: _Stage, token: int, at_ms: int) -> None:
        self.stage = stage
        self.token = token
        self.at_ms = at_ms  # when to ask again, or when a drain is cut off
        self.waits_for = ""


class Instance:
    """One running process of a member.  Feed it events; carry out the effects in order."""

    def __init__(self, member: str, instance: str, timings: PinTimings | None = None) -> None:
        self.member = member
        self.instance = instance
        self.timings = timings or PinTimings()
        self.phase = Phase.WAITING
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_MAX)
        self._config: GroupConfig | None = None
        self._revision = -1
        self._wanted: frozenset[int] = frozenset()
        self._parts: dict[int, _Part] = {}
        self._tokens_seen: dict[int, int] = {}
        self._pin_token = 0
        self._pin_seen = 0
        self._pin_until_ms = 0
        self._pin_at_ms = 0  # when to ask next: acquire, renew or release, by phase
        self._hold_until_ms = 0
        self._closing = False
        self._forced = False
        self._now_ms = 0
        self._effects: list[Effect] = []

    # --- reading -----------------------------------------------------------------------

    @property
    def pin_token(self) -> int | None:
        """The token of the pin it holds."""
        return self._pin_token if self._holds_pin() else None

    @property
    def owned(self) -> dict[int, int]:
        """Partitions it hands events out of, with their tokens (draining ones included)."""
        active = (_Stage.OWNED, _Stage.DRAINING)
        return {p: part.token for p, part in self._parts.items() if part.stage in active}

    @property
    def wanted(self) -> frozenset[int]:
        """Partitions that the config it knows gives its member."""
        return self._wanted

    @property
    def involved(self) -> frozenset[int]:
        """Partitions that it owns, claims or is giving back."""
        return frozenset(self._parts)

    @property
    def settled(self) -> bool:
        """Pinned with exactly what the config says, or standing by, waiting or closed."""
        if self.phase is Phase.STEPPING_DOWN:
            return False
        if self.phase is not Phase.PINNED:
            return not self._parts
        owned = {p for p, part in self._parts.items() if part.stage is _Stage.OWNED}
        return owned == self._wanted == self._parts.keys()

    @property
    def wake_at_ms(self) -> int | None:
        """When a Tick has something to do."""
        times = [p.at_ms for p in self._parts.values() if p.stage is not _Stage.OWNED]
        if self.phase in (Phase.STANDBY, Phase.PINNED, Phase.STEPPING_DOWN):
            times.append(self._pin_at_ms)
        if self._holds_pin():
            times.append(self._pin_until_ms)
        return min(times, default=None)

    def explain(self) -> list[str]:
        """What it is and what it waits for, one line each."""
        lines = [f"{self.member}/{self.instance} is {self.phase.value}"]
        if self.phase is Phase.WAITING:
            lines.append(self._why_waiting())
        for partition, part in sorted(self._parts.items()):
            if part.stage is not _Stage.OWNED:
                lines.append(f"partition {partition}: {part.stage.value} {part.waits_for}".rstrip())
        return lines

    # --- events ------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take in one event; an impossible one raises MembershipEventError and changes nothing."""
        self._check(event)
        self._now_ms = max(self._now_ms, now_ms)
        match event:
            case ConfigSeen(revision, config):
                if revision > self._revision:
                    self._on_config(revision, config)
            case PinGranted(token, asked_ms):
                self._on_pin_granted(token, asked_ms)
            case PinHeld(holder, expires_in_ms):
                if self.phase is Phase.STANDBY:
                    self._stand_by(holder, expires_in_ms)
            case PinFreed():
                if self.phase is Phase.STANDBY and self._now_ms >= self._hold_until_ms:
                    self._acquire_pin()
            case PinRenewed(token, asked_ms, claims):
                if self._holds_pin() and token == self._pin_token:
                    self._pin_until_ms = max(self._pin_until_ms, asked_ms + self.timings.pin_ttl_ms)
                    self._give_back_unknown(claims)
            case PinLost(token):
                if self._holds_pin() and token == self._pin_token:
                    self._lose_pin("another instance has taken it, or the catalog let it expire")
            case PinReleased(token):
                if self.phase is Phase.STEPPING_DOWN and token == self._pin_token:
                    self._unpinned()
            case StepDownAsked(pin_token):
                if self.phase is Phase.PINNED and pin_token == self._pin_token:
                    self._step_down("asked to by an administrator", hold=True)
            case MemberStalled(partition, token):
                if self._has(partition, token):
                    self._on_stalled(partition)
            case Claimed(partition, pin_token, token):
                if self._holds_pin() and pin_token == self._pin_token:
                    self._on_claimed(partition, token)
            case ClaimDenied(partition, pin_token, refusal, owner):
                if self._holds_pin() and pin_token == self._pin_token:
                    waits_for = "" if owner is None else f"for {owner.member}/{owner.instance}"
                    self._on_claim_denied(partition, refusal, waits_for)
            case ClaimLost(partition, token):
                if self._has(partition, token):
                    self._on_claim_lost(partition)
            case Drained(partition, token):
                if self._has(partition, token) and self._stage(partition) is _Stage.DRAINING:
                    self._release(partition)
            case Released(partition, token):
                if self._has(partition, token) and self._stage(partition) is _Stage.RELEASING:
                    self._on_released(partition)
            case Close():
                self._on_close()
            case Tick():
                self._on_tick()
        effects, self._effects = self._effects, []
        return effects

    def _check(self, event: Event) -> None:
        """Answers may be late or repeated, but never from the future or out of nowhere."""
        why = ""
        match event:
            case PinGranted(token) if token < 1:
                why = f"pin token {token} is not one"
            case PinRenewed(token) | PinLost(token) | PinReleased(token):
                if not 1 <= token <= self._pin_seen:
                    why = f"pin token {token} was never granted"
            case Claimed(partition, pin_token, token):
                if not 1 <= pin_token <= self._pin_seen:
                    why = f"pin token {pin_token} was never granted"
                elif partition < 0 or token < 1:
                    why = f"there is no partition {partition} with token {token}"
            case ClaimDenied(partition, pin_token):
                if not 1 <= pin_token <= self._pin_seen:
                    why = f"pin token {pin_token} was never granted"
            case (
                ClaimLost(partition, token)
                | Drained(partition, token)
                | Released(partition, token)
                | MemberStalled(partition, token)
            ):
                if not 1 <= token <= self._tokens_seen.get(partition, 0):
                    why = f"partition {partition} was never claimed with token {token}"
            case _:
                pass
        if why:
            raise MembershipEventError(type(event).__name__, self.phase.value, why)

    # --- config ------------------------------------------------------------------------

    def _on_config(self, revision: int, config: GroupConfig | None) -> None:
        before, self._config, self._revision = self._config, config, revision
        members = {} if config is None else config.assignment()
        self._wanted = frozenset(members.get(self.member, ()))
        if self.phase is Phase.CLOSED:
            return
        if self._holds_pin():
            if config is None:
                self._step_down("the group was deleted", forced=True)
            elif before is not None and _is_another_group(before, config):
                self._step_down("the group was deleted and created anew", forced=True)
            elif self.member not in members:
                self._step_down("its member is no longer in the group")
            elif self.phase is Phase.PINNED:
                self._reconcile()
        elif self._is_member():
            if self.phase is Phase.WAITING:
                self._enter(Phase.STANDBY, Verdict.STANDING_BY, "its name is a member now")
                self._acquire_pin()
        else:
            reason = self._why_waiting()
            if self.phase is not Phase.WAITING or not self._said(reason):
                self._enter(Phase.WAITING, Verdict.WAITING, reason)

    def _is_member(self) -> bool:
        return self._config is not None and self.member in self._config.assignment()

    def _why_waiting(self) -> str:
        if self._config is None:
            return "there is no such group"
        members = ", ".join(list(self._config.assignment())[:10]) or "nobody"
        return f"{self.member} is not a member of the group; members are: {members}"

    def _reconcile(self) -> None:
        """Give back what moved away, claim what is new; leave the rest alone."""
        for partition, part in list(self._parts.items()):
            if partition not in self._wanted and part.stage is _Stage.OWNED:
                self._drain(partition, "the config gives it to another member")
        for partition in sorted(self._wanted - self._parts.keys()):
            self._claim(partition)

    # --- the pin -----------------------------------------------------------------------

    def _holds_pin(self) -> bool:
        return self.phase in (Phase.PINNED, Phase.STEPPING_DOWN)

    def _acquire_pin(self) -> None:
        self._pin_at_ms = self._now_ms + self.timings.request_timeout_ms
        self._do(AcquirePin(self._now_ms))

    def _stand_by(self, holder: str, expires_in_ms: int) -> None:
        wait_ms = max(1, min(expires_in_ms, self.timings.standby_retry_ms))
        self._pin_at_ms = max(self._now_ms + wait_ms, self._hold_until_ms)
        reason = f"instance {holder} holds the pin"
        if not self._said(reason):
            self._decide(Verdict.STANDING_BY, reason)

    def _on_pin_granted(self, token: int, asked_ms: int) -> None:
        newer = token > self._pin_seen
        self._pin_seen = max(self._pin_seen, token)
        if not newer:
            return
        if self._holds_pin():
            # An earlier request was granted as well, and raised the token once more.
            self._abandon_all("its pin was granted again under a newer token")
        elif self.phase is not Phase.STANDBY:
            self._do(ReleasePin(token))  # asked for before the config changed or it closed
            return
        self._pin_token = token
        self._pin_until_ms = asked_ms + self.timings.pin_ttl_ms
        if self.phase is Phase.STANDBY:
            self._forced = False
            self._enter(Phase.PINNED, Verdict.PINNED, f"no other instance held the pin ({token})")
        if self.phase is Phase.PINNED:
            self._pin_at_ms = self._now_ms + self.timings.renew_every_ms
            self._reconcile()
        else:
            self._finish_step_down()

    def _lose_pin(self, why: str) -> None:
        self._abandon_all(f"the pin was lost: {why}")
        self._decide(Verdict.UNPINNED, why)
        self._unpinned()

    def _unpinned(self) -> None:
        """The pin is gone: where to go from here."""
        self._forced = False
        self._parts.clear()  # claims end with the pin under which they were made
        if self._closing:
            self._enter(Phase.CLOSED, Verdict.CLOSED, "it has left")
        elif self._is_member():
            self._enter(Phase.STANDBY, Verdict.STANDING_BY, "it gave up the pin or lost it")
            self._pin_at_ms = self._hold_until_ms
            if self._now_ms >= self._hold_until_ms:
                self._acquire_pin()
        else:
            self._enter(Phase.WAITING, Verdict.WAITING, self._why_waiting())

    def _step_down(self, why: str, *, hold: bool = False, forced: bool = False) -> None:
        """Finish (or, forced, abandon) everything, then give up the pin."""
        if hold:
            self._hold_until_ms = self._now_ms + self.timings.step_down_hold_ms
        self._forced = self._forced or forced
        if self.phase is Phase.PINNED:
            self._enter(Phase.STEPPING_DOWN, Verdict.UNPINNED, why)
        for partition, part in list(self._parts.items()):
            if part.stage is _Stage.CLAIMING:
                del self._parts[partition]
            elif part.stage is not _Stage.RELEASING and self._forced:
                self._cut_off(partition, why)
            elif part.stage is _Stage.OWNED:
                self._drain(partition, why)
        self._finish_step_down()

    def _finish_step_down(self) -> None:
        if self.phase is Phase.STEPPING_DOWN and not self._parts:
            self._pin_at_ms = self._now_ms + self.timings.request_timeout_ms
            self._do(ReleasePin(self._pin_token))

    def _give_back_unknown(self, claims: tuple[tuple[int, int], ...]) -> None:
        for partition, token in claims:
            if partition not in self._parts and token >= self._tokens_seen.get(partition, 0):
                self._tokens_seen[partition] = token
                self._parts[partition] = _Part(_Stage.RELEASING, token, 0)
                self._release(partition)

    # --- partitions --------------------------------------------------------------------

    def _has(self, partition: int, token: int) -> bool:
        part = self._parts.get(partition)
        return part is not None and part.token == token and part.stage is not _Stage.CLAIMING

    def _stage(self, partition: int) -> _Stage:
        return self._parts[partition].stage

    def _claim(self, partition: int, after_ms: int = 0) -> None:
        part = self._parts[partition] = _Part(_Stage.CLAIMING, 0, self._now_ms + after_ms)
        if not after_ms:
            part.at_ms += self.timings.request_timeout_ms
            self._do(ClaimPartition(partition, self._pin_token))

    def _on_claimed(self, partition: int, token: int) -> None:
        part = self._parts.get(partition)
        if token < self._tokens_seen.get(partition, 0):
            return  # a late answer; the partition has changed hands since
        if part is not None and part.stage is not _Stage.CLAIMING and part.token == token:
            return  # the answer to a request that was made twice
        self._tokens_seen[partition] = token
        if self.phase is Phase.PINNED and partition in self._wanted:
            if part is not None and part.stage in (_Stage.OWNED, _Stage.DRAINING):
                self._do(Abandon(partition, part.token))
            self._parts[partition] = _Part(_Stage.OWNED, token, 0)
            self._do(Consume(partition, token))
            self._decide(Verdict.ASSIGNED, f"claimed with token {token}", partition)
        else:  # no longer ours by the time the answer came
            self._parts[partition] = _Part(_Stage.RELEASING, token, 0)
            self._release(partition)

    def _on_claim_denied(self, partition: int, refusal: Refusal, waits_for: str) -> None:
        if refusal is Refusal.NOT_PINNED:
            self._lose_pin("the catalog says that it is not held")
            return
        part = self._parts.get(partition)
        if part is None or part.stage is not _Stage.CLAIMING:
            return
        if partition not in self._wanted:
            self._gone(partition)
            return
        part.at_ms = self._now_ms + self.timings.claim_retry_ms
        if part.waits_for != (waits_for or refusal.value):
            part.waits_for = waits_for or refusal.value
            self._decide(Verdict.WAITING_FOR, f"{refusal.value} {waits_for}".rstrip(), partition)

    def _on_claim_lost(self, partition: int) -> None:
        part = self._parts.pop(partition)
        if part.stage in (_Stage.OWNED, _Stage.DRAINING):
            self._do(Abandon(partition, part.token))
            self._decide(Verdict.FENCED, f"token {part.token} is stale", partition)
        self._gone(partition, after_ms=self.timings.claim_retry_ms)

    def _on_released(self, partition: int) -> None:
        self._parts.pop(partition)
        self._gone(partition)

    def _gone(self, partition: int, after_ms: int = 0) -> None:
        """The partition is off our hands; by now it may be wanted again."""
        self._parts.pop(partition, None)
        if self.phase is Phase.PINNED and partition in self._wanted:
            self._claim(partition, after_ms)
        self._finish_step_down()

    def _drain(self, partition: int, why: str) -> None:
        part = self._parts[partition]
        part.stage = _Stage.DRAINING
        part.at_ms = self._now_ms + self.timings.drain_limit_ms
        self._do(Drain(partition, part.token))
        self._decide(Verdict.MOVING, why, partition)

    def _cut_off(self, partition: int, why: str) -> None:
        self._do(Abandon(partition, self._parts[partition].token))
        self._decide(Verdict.FENCED, why, partition)
        self._release(partition)

    def _release(self, partition: int) -> None:
        part = self._parts[partition]
        part.stage = _Stage.RELEASING
        part.at_ms = self._now_ms + self.timings.request_timeout_ms
        self._do(ReleasePartition(partition, part.token))

    def _abandon_all(self, why: str) -> None:
        for partition, part in self._parts.items():
            if part.stage in (_Stage.OWNED, _Stage.DRAINING):
                self._do(Abandon(partition, part.token))
                self._decide(Verdict.FENCED, why, partition)
        self._parts.clear()

    def _on_stalled(self, partition: int) -> None:
        reason = f"its consumer answers nothing on partition {partition}"
        self._decide(Verdict.EVICTED, reason, partition)
        self._step_down(reason, hold=True, forced=True)

    # --- the end, and time ---------------------------------------------------------------

    def _on_close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._holds_pin():
            self._step_down("it closes")
        else:
            self._enter(Phase.CLOSED, Verdict.CLOSED, "it has left")

    def _on_tick(self) -> None:
        now = self._now_ms
        if self._holds_pin() and now >= self._pin_until_ms:
            self._lose_pin("it could not be renewed in time")
            return
        if now >= self._pin_at_ms:
            match self.phase:
                case Phase.STANDBY if now >= self._hold_until_ms:
                    self._acquire_pin()
                case Phase.PINNED:
                    self._renew_pin()
                case Phase.STEPPING_DOWN if self._parts:
                    self._renew_pin()
                case Phase.STEPPING_DOWN:
                    self._finish_step_down()
                case _:
                    pass
        for partition, part in list(self._parts.items()):
            if part.stage is _Stage.OWNED or now < part.at_ms:
                continue
            match part.stage:
                case _Stage.CLAIMING if partition in self._wanted:
                    part.at_ms = now + self.timings.request_timeout_ms
                    self._do(ClaimPartition(partition, self._pin_token))
                case _Stage.CLAIMING:
                    self._gone(partition)
                case _Stage.DRAINING:
                    self._cut_off(partition, "it did not finish within the limit")
                case _:
                    self._release(partition)

    def _renew_pin(self) -> None:
        self._pin_at_ms = self._now_ms + self.timings.renew_every_ms
        self._do(RenewPin(self._pin_token, self._now_ms))

    # --- saying ------------------------------------------------------------------------

    def _do(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _said(self, reason: str) -> bool:
        """Whether this is the last thing it decided; the same is not said twice in a row."""
        return bool(self.decisions) and self.decisions[-1].reason == reason

    def _enter(self, phase: Phase, verdict: Verdict, reason: str) -> None:
        self.phase = phase
        self._decide(verdict, reason)

    def _decide(self, verdict: Verdict, reason: str, partition: int | None = None) -> None:
        decision = Decision(self._now_ms, verdict, self.member, self.instance, reason, partition)
        self.decisions.append(decision)
        self._do(decision)


def _is_another_group(before: GroupConfig, after: GroupConfig) -> bool:
    try:
        check_change(before, after)
    except GroupUpdateError:
        return True
    return False
