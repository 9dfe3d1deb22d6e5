"""What an instance of a member hears, and what it asks its runtime to do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from headrace.groups.decisions.core.record import What
from headrace.groups.partitioned.core.config import GroupConfig
from headrace.groups.partitioned.core.pins import ClaimOwner, Refusal


class Phase(Enum):
    """Where an instance stands."""

    WAITING = "waiting"  # its name is not a member, or there is no such group
    STANDBY = "standing by"  # another instance holds the pin, or nobody yet
    PINNED = "pinned"
    STEPPING_DOWN = "stepping down"  # finishes its partitions, then gives up the pin
    CLOSED = "closed"


class _OfPin(msgspec.Struct, frozen=True):
    token: int


class _OfPartition(msgspec.Struct, frozen=True):
    partition: int
    token: int


# --- events --------------------------------------------------------------------------------


class ConfigSeen(msgspec.Struct, frozen=True):
    """The group's config at a revision; None when there is no such group, or it is not for here."""

    revision: int
    config: GroupConfig | None
    elsewhere: str = ""
    """Why a group that is there is not consumed in this region."""


class PinGranted(_OfPin, frozen=True):
    """The pin is ours under this token; it was asked for at ``asked_ms``."""

    asked_ms: int


class PinHeld(msgspec.Struct, frozen=True):
    """Another instance has the pin until it expires or is given up."""

    instance: str
    expires_in_ms: int


class PinFreed(msgspec.Struct, frozen=True):
    """News: the pin may be free."""


class PinRenewed(_OfPin, frozen=True):
    """A renewal that was asked for at ``asked_ms`` has been recorded.

    ``claims`` are partitions and tokens that the catalog has under this pin; one that the
    instance does not know of (its answer was lost) is given back.  If they are ``whole``, one that
    the instance has and the catalog has not was taken from it.
    """

    asked_ms: int
    claims: tuple[tuple[int, int], ...] = ()
    whole: bool = False


class PinLost(_OfPin, frozen=True):
    """The pin is no longer held under this token."""


class PinReleased(_OfPin, frozen=True):
    """The pin has been given up (or was lost before)."""


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
    owner: ClaimOwner | None = None


class ClaimsFreed(msgspec.Struct, frozen=True):
    """News: partitions that were refused may be free by now."""


class ClaimLost(_OfPartition, frozen=True):
    """The catalog refused an ack or a release: the partition is someone else's."""


class Drained(_OfPartition, frozen=True):
    """Nothing of the partition is in flight any more."""


class Released(_OfPartition, frozen=True):
    """The claim has been given up (or was lost before)."""


class MemberStalled(_OfPartition, frozen=True):
    """The consumer of a partition is alive and answers nothing."""


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


def impossible(event: Event, pin_seen: int, tokens_seen: Mapping[int, int]) -> str:
    """Answers may be late or repeated, but never from the future or out of nowhere: why it is so.

    ``pin_seen`` and ``tokens_seen`` (by partition) are the highest tokens that were granted.
    """
    match event:
        case Tick() | ConfigSeen():  # the most frequent ones first
            pass
        case PinGranted(token) if token < 1:
            return f"pin token {token} is not one"
        case PinRenewed(token) | PinLost(token) | PinReleased(token):
            if not 1 <= token <= pin_seen:
                return f"pin token {token} was never granted"
        case Claimed(_, pin_token) | ClaimDenied(_, pin_token) if not 1 <= pin_token <= pin_seen:
            return f"pin token {pin_token} was never granted"
        case Claimed(partition, _, token) if partition < 0 or token < 1:
            return f"there is no partition {partition} with token {token}"
        case (
            ClaimLost(partition, token)
            | Drained(partition, token)
            | Released(partition, token)
            | MemberStalled(partition, token)
        ):
            if not 1 <= token <= tokens_seen.get(partition, 0):
                return f"partition {partition} was never claimed with token {token}"
        case _:
            pass
    return ""


# --- effects -------------------------------------------------------------------------------


class AcquirePin(msgspec.Struct, frozen=True):
    """Try to take the pin; answer PinGranted or PinHeld."""

    asked_ms: int


class RenewPin(_OfPin, frozen=True):
    """Extend the pin; answer PinRenewed (with all claims under it if ``look``) or PinLost."""

    asked_ms: int
    look: bool = False


class ReleasePin(_OfPin, frozen=True):
    """Give the pin up; answer PinReleased, also when it was lost before."""


class ClaimPartition(msgspec.Struct, frozen=True):
    """Claim by ``judge_claim``; answer Claimed (with the progress at hand) or ClaimDenied."""

    partition: int
    pin_token: int


class Consume(_OfPartition, frozen=True):
    """Start handing out the partition's events under this token."""


class Drain(_OfPartition, frozen=True):
    """Hand out no more; answer Drained when nothing is in flight."""


class Abandon(_OfPartition, frozen=True):
    """Stop at once: what is in flight no longer counts."""


class ReleasePartition(_OfPartition, frozen=True):
    """Store what was acked and give the claim up, in one step; answer Released."""


class InstanceDecision(msgspec.Struct, frozen=True):
    """A decision with its reason."""

    at_ms: int
    what: What
    member: str
    instance: str
    reason: str
    partition: int | None = None
    other: str = ""
    """The member that it waits for."""
    passing: bool = False
    """A step on the way to another, or one that a transaction records: not for the record."""


InstanceEffect = (
    AcquirePin
    | RenewPin
    | ReleasePin
    | ClaimPartition
    | Consume
    | Drain
    | Abandon
    | ReleasePartition
    | InstanceDecision
)
