"""An instance of a member: when it waits, stands by, is pinned and steps down.

Theory of operation
-------------------
An instance hears events and answers with effects for its runtime to carry out.  Its phases:

    waiting ──▶ standing by ──▶ pinned ──▶ stepping down ──▶ standing by, waiting or closed
       ▲             │             │
       └─ not a      └─────────────┴── pin lost: everything is abandoned at once
          member

Under a pin it brings what it owns in line with what the config gives its member (``partitions``).

*No flapping.*  A change of config never touches the pin: the active instance gives back only
what moved and claims only what is new.  The pin is given up for a reason that is the instance's
own: its member was dropped, it was told to step down, its consumer has stalled, it closes.
After a step-down it holds back for a while, so that a standby is first.

*Moving.*  A partition is drained, then released with its progress; the next owner's claim is
refused until then, or until the pin has expired (``pins``).  A drain that takes too long is cut
off: what is in flight is abandoned, which means that its acks no longer count.

*Lost answers.*  A request that is not answered in time is made again; every request can be
repeated without harm.  A late or repeated answer is recognised by its token and changes nothing.
A claim that was made but never heard of shows up with the next renewal and is given back.

*Doubt.*  When the pin was not renewed for its time to live, by the instance's own clock, it hands
out nothing, keeps what it holds, and asks until the catalog answers: a pin that has run out is
renewed if nobody took it.  Safety does not depend on that: it comes from the fencing tokens.
"""

from __future__ import annotations

from collections import deque

from headrace.errors import MembershipEventError
from headrace.groups.decisions.core.record import What
from headrace.groups.partitioned.core.changes import is_another_group
from headrace.groups.partitioned.core.config import GroupConfig
from headrace.groups.partitioned.core.decisions import DECISIONS_MAX, InstanceOutput
from headrace.groups.partitioned.core.messages import (
    AcquirePin,
    ClaimDenied,
    Claimed,
    ClaimLost,
    ClaimsFreed,
    Close,
    ConfigSeen,
    Drained,
    Event,
    InstanceDecision,
    InstanceEffect,
    MemberStalled,
    Phase,
    PinFreed,
    PinGranted,
    PinHeld,
    PinLost,
    PinReleased,
    PinRenewed,
    Released,
    ReleasePin,
    RenewPin,
    StepDownAsked,
    Tick,
    impossible,
)
from headrace.groups.partitioned.core.partitions import Partitions, PinTimings
from headrace.groups.partitioned.core.pins import LateRenewals, Refusal
from headrace.groups.partitioned.core.transitions import PHASE_TRANSITIONS, PhaseCause, Stage

__all__ = ["DECISIONS_MAX", "Instance", "PinTimings"]


class Instance:
    """One running process of a member.  Feed it events; carry out the effects in order."""

    def __init__(self, member: str, instance: str, timings: PinTimings | None = None) -> None:
        self.member = member
        self.instance = instance
        self.timings = timings or PinTimings()
        self.phase = Phase.WAITING
        self._out = InstanceOutput(member, instance)
        self._partitions = Partitions(self._out, self.timings)
        self._config: GroupConfig | None = None
        self._revision, self._elsewhere = -1, ""
        self._pin_token = 0
        self._pin_seen = 0
        self._pin_until_ms = 0
        self._late = LateRenewals(self.timings.pin_ttl_ms)
        self._pin_at_ms = 0  # when to ask next: acquire, renew or release, by phase
        self._hold_until_ms = 0
        self.unpin_reason = ""  # why it gives up the pin
        self._unpin_asked = False
        self._closing = False

    # --- reading -----------------------------------------------------------------------

    @property
    def pin_token(self) -> int | None:
        """The token of the pin it holds."""
        return self._pin_token if self._holds_pin() else None

    @property
    def closing(self) -> bool:
        """Whether it is leaving for good."""
        return self._closing

    @property
    def pin_until_ms(self) -> int | None:
        """Until when it may act under its pin, unless that is renewed."""
        return self._pin_until_ms if self._holds_pin() else None

    @property
    def owned(self) -> dict[int, int]:
        """Partitions it hands events out of, with their tokens (draining ones included)."""
        return self._partitions.owned

    @property
    def involved(self) -> frozenset[int]:
        """Partitions that it owns, claims or is giving back."""
        return frozenset(self._partitions.parts)

    @property
    def wanted(self) -> frozenset[int]:
        """Partitions that the config it knows gives its member."""
        assignment = {} if self._config is None else self._config.assignment()
        return frozenset(assignment.get(self.member, ()))

    @property
    def waits_for_claims(self) -> bool:
        """Whether a claim was refused and is to be made again."""
        return self.phase is Phase.PINNED and self._partitions.waiting

    def taking_over(self) -> bool:
        """Whether there is more to claim before it has all that the config gives it."""
        return self.phase is Phase.PINNED and not self._partitions.as_wanted

    @property
    def settled(self) -> bool:
        """Pinned with exactly what the config says, or standing by, waiting or closed."""
        return self._partitions.as_wanted if self.phase is Phase.PINNED else not self._holds_pin()

    @property
    def decisions(self) -> deque[InstanceDecision]:
        """The last things it decided, and why."""
        return self._out.decisions

    @property
    def wake_at_ms(self) -> int | None:
        """When a Tick has something to do."""
        times = [] if self.doubts_pin() else [self._partitions.wake_at_ms]
        if self.phase is Phase.STANDBY or self._holds_pin():
            times.append(self._pin_at_ms)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def explain(self) -> list[str]:
        """What it is and what it waits for, one line each."""
        lines = [f"{self.member}/{self.instance} is {self.phase.value}"]
        if self.phase is Phase.WAITING:
            lines.append(self._why_waiting())
        elif self.doubts_pin():
            lines.append("its pin could not be renewed in time: the catalog does not answer")
        return lines + self._partitions.explain()

    # --- events ------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: int) -> list[InstanceEffect]:
        """Take in one event; an impossible one raises MembershipEventError and changes nothing."""
        why = impossible(event, self._pin_seen, self._partitions.tokens_seen)
        if why:
            raise MembershipEventError(type(event).__name__, self.phase.value, why)
        self._out.now_ms = max(self._out.now_ms, now_ms)
        match event:
            case Tick():  # the most frequent ones first
                self._on_tick()
            case PinRenewed(token, asked_ms, claims, whole):
                if self.prolonged(token, asked_ms):
                    self._partitions.give_back_unknown(claims)
                    if whole:
                        self._partitions.lose_all_but(claims, asked_ms)
            case ConfigSeen(revision):
                if revision > self._revision:
                    self._on_config(event)
            case PinGranted(token, asked_ms):
                self._on_pin_granted(token, asked_ms)
            case PinHeld(holder, expires_in_ms):
                if self.phase is Phase.STANDBY:
                    self._stand_by(holder, expires_in_ms)
            case PinFreed():
                if self.phase is Phase.STANDBY and self._out.now_ms >= self._hold_until_ms:
                    self._acquire_pin()
            case PinLost(token):
                if token == self.pin_token:
                    self._lose_pin("another instance has it, or it was taken away")
            case PinReleased(token):
                if self.phase is Phase.STEPPING_DOWN and token == self._pin_token:
                    self._unpinned()
            case ClaimsFreed():
                if self.phase is Phase.PINNED:
                    self._partitions.retry()
            case StepDownAsked(pin_token):
                if self.phase is Phase.PINNED and pin_token == self._pin_token:
                    self._step_down("asked to by an administrator", hold=True)
            case Close():
                self._on_close()
            case _:
                self._on_partition_event(event)
        self._finish_step_down()
        return self._out.take()

    def prolonged(self, token: int, asked_ms: int) -> bool:
        """All that PinRenewed without claims does, unless it is of another pin."""
        if held := token == self.pin_token:
            self._pin_until_ms = max(self._pin_until_ms, asked_ms + self.timings.pin_ttl_ms)
        return held

    def _on_partition_event(
        self,
        event: Claimed | ClaimDenied | ClaimLost | Drained | Released | MemberStalled,
    ) -> None:
        partitions = self._partitions
        match event:
            case Claimed(partition, pin_token, token) if pin_token == self.pin_token:
                partitions.claimed(partition, token)
            case ClaimDenied(partition, pin_token, refusal, owner) if pin_token == self.pin_token:
                partitions.denied(partition, refusal, owner)
                if refusal is Refusal.NOT_PINNED:
                    self._renew_pin()  # which tells whether it ran out, or is another's
            case ClaimLost(partition, token) if partitions.has(partition, token):
                partitions.lost(partition)
            case Drained(partition, token) if partitions.has(partition, token, Stage.DRAINING):
                partitions.drained(partition)
            case Released(partition, token) if partitions.has(partition, token, Stage.RELEASING):
                partitions.released(partition)
            case MemberStalled(partition, token) if partitions.has(partition, token):
                self._on_stalled(partition)
            case _:
                pass  # an answer that has been overtaken

    # --- config ------------------------------------------------------------------------

    def _on_config(self, seen: ConfigSeen) -> None:
        before, config, self._elsewhere = self._config, seen.config, seen.elsewhere
        self._config, self._revision = config, seen.revision
        if self.phase is Phase.CLOSED:
            return
        if self._holds_pin():
            if config is None:
                self._step_down(self._elsewhere or "the group was deleted", forced=True)
            elif before is not None and is_another_group(before, config):
                self._step_down("the group was deleted and created anew", forced=True)
            elif not self._is_member():
                self._step_down("its member is no longer in the group")
            elif self.phase is Phase.PINNED:
                self._partitions.want(self.wanted)
        elif self._is_member():
            if self.phase is Phase.WAITING:
                reason = "its name is a member now"
                self._enter(PhaseCause.MEMBER, What.STANDS_BY, reason, passing=True)
                self._acquire_pin()
        else:
            reason = self._why_waiting()
            if self.phase is not Phase.WAITING or not self._out.said(reason):
                self._enter(PhaseCause.NO_MEMBER, What.WAITS, reason)

    def _is_member(self) -> bool:
        return self._config is not None and self.member in self._config.assignment()

    def _why_waiting(self) -> str:
        if self._config is None:
            return self._elsewhere or "there is no such group"
        members = ", ".join(list(self._config.assignment())[:10]) or "nobody"
        return f"{self.member} is not a member of the group; members are: {members}"

    # --- the pin -----------------------------------------------------------------------

    def _holds_pin(self) -> bool:
        return self.phase in (Phase.PINNED, Phase.STEPPING_DOWN)

    def doubts_pin(self) -> bool:
        """Whether the pin has run out, as far as it knows."""
        return self._holds_pin() and self._out.now_ms >= self._pin_until_ms

    def _acquire_pin(self) -> None:
        self._pin_at_ms = self._out.now_ms + self.timings.request_timeout_ms
        self._out.do(AcquirePin(self._out.now_ms))

    def _stand_by(self, holder: str, expires_in_ms: int) -> None:
        wait_ms = max(1, min(expires_in_ms, self.timings.standby_retry_ms))
        self._pin_at_ms = max(self._out.now_ms + wait_ms, self._hold_until_ms)
        reason = f"instance {holder} holds the pin"
        if not self._out.said(reason):
            self._out.decide(What.STANDS_BY, reason)

    def _on_pin_granted(self, token: int, asked_ms: int) -> None:
        if token <= self._pin_seen:
            return
        self._pin_seen = token
        if self._holds_pin():
            # An earlier request was granted as well, and raised the token once more.
            self._partitions.abandon_all("its pin was granted again under a newer token")
        elif self.phase is not Phase.STANDBY:
            self._out.do(ReleasePin(token))  # asked for before the config changed or it closed
            return
        self._pin_token = self._partitions.pin_token = token
        self._pin_until_ms = asked_ms + self.timings.pin_ttl_ms
        self._unpin_asked = False
        if self.phase is Phase.STANDBY:
            reason = f"no other instance held the pin ({token})"
            self._enter(PhaseCause.GRANTED, What.PINNED, reason, passing=True)
        if self.phase is Phase.PINNED:
            self._pin_at_ms = self._out.now_ms + self.timings.renew_every_ms
            self._partitions.want(self.wanted)

    def _renew_pin(self) -> None:
        now_ms = self._out.now_ms
        self._pin_at_ms = now_ms + self.timings.renew_every_ms
        look = self._late.asks(now_ms, self._pin_until_ms)
        self._out.do(RenewPin(self._pin_token, now_ms, look))

    def _release_pin(self) -> None:
        self._unpin_asked = True
        self._pin_at_ms = self._out.now_ms + self.timings.request_timeout_ms
        self._out.do(ReleasePin(self._pin_token))

    def _lose_pin(self, why: str) -> None:
        self._partitions.abandon_all(f"the pin was lost: {why}")
        self._out.decide(What.UNPINNED, why)
        self._unpinned()

    def _unpinned(self) -> None:
        """The pin is gone, and with it every claim made under it: where to go from here."""
        self._partitions.wanted = frozenset()
        self._partitions.forget()
        if self._closing:
            self._enter(PhaseCause.LEFT, What.LEFT, "it has left", passing=True)
        elif self._is_member():
            reason = "it gave up the pin or lost it"
            self._enter(PhaseCause.UNPINNED, What.STANDS_BY, reason, passing=True)
            self._pin_at_ms = self._hold_until_ms
            if self._out.now_ms >= self._hold_until_ms:
                self._acquire_pin()
        else:
            cause = PhaseCause.UNPINNED_NO_MEMBER
            self._enter(cause, What.WAITS, self._why_waiting())

    # --- stepping down -------------------------------------------------------------------

    def _step_down(self, why: str, *, hold: bool = False, forced: bool = False) -> None:
        """Finish (or, forced, abandon) everything, then give up the pin."""
        if hold:
            self._hold_until_ms = self._out.now_ms + self.timings.step_down_hold_ms
        if self.phase is Phase.PINNED:
            self._unpin_asked = False
            self.unpin_reason = why
            self._enter(PhaseCause.STEP_DOWN, What.UNPINNED, why, passing=True)
        self._partitions.leave(why, forced=forced)

    def _finish_step_down(self) -> None:
        """Once everything is given back, so is the pin."""
        if self.phase is not Phase.STEPPING_DOWN:
            return
        if self._partitions.parts:
            self._unpin_asked = False
        elif not self._unpin_asked:
            self._release_pin()

    def _on_stalled(self, partition: int) -> None:
        reason = f"its consumer answers nothing on partition {partition}"
        self._out.decide(What.EVICTED, reason, partition)
        self._step_down(reason, hold=True, forced=True)

    def _on_close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._holds_pin():
            self._step_down("it closes")
        else:
            self._enter(PhaseCause.CLOSE, What.LEFT, "it has left")

    # --- time --------------------------------------------------------------------------

    def _on_tick(self) -> None:
        now = self._out.now_ms
        if now >= self._pin_at_ms:
            match self.phase:
                case Phase.STANDBY if now >= self._hold_until_ms:
                    self._acquire_pin()
                case Phase.STEPPING_DOWN if not self._partitions.parts:
                    self._release_pin()
                case Phase.PINNED | Phase.STEPPING_DOWN:
                    self._renew_pin()
        if not self.doubts_pin():
            self._partitions.tick()

    def _enter(self, cause: PhaseCause, what: What, reason: str, *, passing: bool = False) -> None:
        self.phase = PHASE_TRANSITIONS[self.phase, cause]
        self._out.decide(what, reason, passing=passing)
