"""What an instance of a member hears, and what it asks its runtime to do."""

from __future__ import annotations

from enum import Enum

import msgspec

from headrace.groups.partitioned.core.config import GroupConfig
from headrace.groups.partitioned.core.pins import Owner, Refusal


class Phase(Enum):
    """Where an instance stands."""

    WAITING = "waiting"  # its name is not a member, or there is no such group
    STANDBY = "standing by"  # another instance holds the pin, or nobody yet
    PINNED = "pinned"
    STEPPING_DOWN = "stepping down"  # finishes its partitions, then gives up the pin
    CLOSED = "closed"


# --- events --------------------------------------------------------------------------------


class ConfigSeen(msgspec.Struct, frozen=True):
    """The group's config at a revision; None when there is no such group."""

    revision: int
    config: GroupConfig | None


class PinGranted(msgspec.Struct, frozen=True):
    """The pin is ours under this token; it was asked for at ``asked_ms``."""

    token: int
    asked_ms: int


class PinHeld(msgspec.Struct, frozen=True):
    """Another instance has the pin until it expires or is given up."""

    instance: str
    expires_in_ms: int


class PinFreed(msgspec.Struct, frozen=True):
    """News: the pin may be free."""


class PinRenewed(msgspec.Struct, frozen=True):
    """A renewal that was asked for at ``asked_ms`` has been recorded.

    ``claims`` are the partitions and tokens that the catalog has under this pin; one that the
    instance does not know of (its answer was lost) is given back.
    """

    token: int
    asked_ms: int
    claims: tuple[tuple[int, int], ...] = ()


class PinLost(msgspec.Struct, frozen=True):
    """The pin is no longer held under this token."""

    token: int


class PinReleased(msgspec.Struct, frozen=True):
    """The pin has been given up (or was lost before)."""

    token: int


class Claimed(msgspec.Struct, frozen=True):
    """The partition is ours; ``token`` fences whoever had it before."""

    partition: int
    pin_token: int
    token: int


class ClaimDenied(msgspec.Struct, frozen=True):
    """The partition cannot be claimed now."""

    partition: int
    pin_token: int
    refusal: Refusal
    owner: Owner | None = None


class ClaimsFreed(msgspec.Struct, frozen=True):
    """News: partitions that were refused may be free by now."""


class ClaimLost(msgspec.Struct, frozen=True):
    """The catalog refused an ack or a release: the partition is someone else's."""

    partition: int
    token: int


class Drained(msgspec.Struct, frozen=True):
    """Nothing of the partition is in flight any more."""

    partition: int
    token: int


class Released(msgspec.Struct, frozen=True):
    """The claim has been given up (or was lost before)."""

    partition: int
    token: int


class MemberStalled(msgspec.Struct, frozen=True):
    """The consumer of a partition is alive and answers nothing."""

    partition: int
    token: int


class StepDownAsked(msgspec.Struct, frozen=True):
    """An administrator wants the holder of this pin token to give it up."""

    pin_token: int


class Close(msgspec.Struct, frozen=True):
    """The application leaves."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


Event = (
    ConfigSeen
    | PinGranted
    | PinHeld
    | PinFreed
    | PinRenewed
    | PinLost
    | PinReleased
    | Claimed
    | ClaimDenied
    | ClaimsFreed
    | ClaimLost
    | Drained
    | Released
    | MemberStalled
    | StepDownAsked
    | Close
    | Tick
)

# --- effects -------------------------------------------------------------------------------


class AcquirePin(msgspec.Struct, frozen=True):
    """Try to take the pin; answer PinGranted or PinHeld."""

    asked_ms: int


class RenewPin(msgspec.Struct, frozen=True):
    """Extend the pin; answer PinRenewed or PinLost."""

    token: int
    asked_ms: int


class ReleasePin(msgspec.Struct, frozen=True):
    """Give the pin up; answer PinReleased, also when it was lost before."""

    token: int


class ClaimPartition(msgspec.Struct, frozen=True):
    """Claim by ``judge_claim``; answer Claimed (with the progress at hand) or ClaimDenied."""

    partition: int
    pin_token: int


class Consume(msgspec.Struct, frozen=True):
    """Start handing out the partition's events under this token."""

    partition: int
    token: int


class Drain(msgspec.Struct, frozen=True):
    """Hand out no more; answer Drained when nothing is in flight."""

    partition: int
    token: int


class Abandon(msgspec.Struct, frozen=True):
    """Stop at once: what is in flight no longer counts."""

    partition: int
    token: int


class ReleasePartition(msgspec.Struct, frozen=True):
    """Store what was acked and give the claim up, in one step; answer Released."""

    partition: int
    token: int


class Verdict(Enum):
    """What was decided, for explain."""

    WAITING = "waiting"
    STANDING_BY = "standing by"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    ASSIGNED = "assigned"
    WAITING_FOR = "waiting for"
    MOVING = "moving"
    FENCED = "fenced"
    EVICTED = "evicted"
    CLOSED = "closed"


class Decision(msgspec.Struct, frozen=True):
    """A decision with its reason, to be recorded."""

    at_ms: int
    verdict: Verdict
    member: str
    instance: str
    reason: str
    partition: int | None = None


InstanceEffect = (
    AcquirePin
    | RenewPin
    | ReleasePin
    | ClaimPartition
    | Consume
    | Drain
    | Abandon
    | ReleasePartition
    | Decision
)
