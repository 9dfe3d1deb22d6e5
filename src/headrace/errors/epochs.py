"""Epochs, and regions."""

from __future__ import annotations

from headrace.errors.log import HeadraceError, InvalidInputError


class TimeShapeError(InvalidInputError):
    """A time is not of the shape that its stream uses; nothing was changed."""


class EpochError(HeadraceError):
    """Something that an epoch publisher or subscriber must refuse; nothing was changed.

    ``update`` is what was refused and ``state`` what it met, both as text.
    """

    def __init__(self, why: str, *, update: object, state: object) -> None:
        super().__init__(f"{update} refused: {why} (state: {state})")
        self.update = str(update)
        self.state = str(state)


class IllegalTimeError(EpochError):
    """Data or a new capability at a time that is not at or after a held one."""


class FrontierError(EpochError):
    """A frontier that would go back, or lose what it does not have."""


class EpochMessageError(EpochError):
    """A message or call that makes no sense in this state."""


class UnknownPartitionError(EpochError, LookupError):
    """A partition that is not part of the subscription."""


class UnknownSubscriberError(EpochError, LookupError):
    """A publisher has no subscriber of that name."""


class SubscriberExistsError(EpochError):
    """A publisher has a subscriber of that name already."""


class EpochCountError(EpochError):
    """An epoch is complete and not all of its rows have arrived; resume from the frontier."""


class EpochBufferFullError(EpochError):
    """A subscriber would have to hold more than its limit allows."""


class PublisherBlockedError(EpochError):
    """A subscriber that must not miss anything has no room; publish again when it has."""

    def __init__(self, subscribers: tuple[str, ...], *, update: object, state: object) -> None:
        super().__init__(f"no room for {', '.join(subscribers)}", update=update, state=state)
        self.subscribers = subscribers


class HistoryGoneError(EpochError):
    """Epochs at or after the wanted frontier are no longer there; ``since`` is what still is."""

    def __init__(self, frontier: object, since: object, *, what: str) -> None:
        super().__init__(
            f"{what}; start from {since} or later, or from now", update=f"start from {frontier}",
            state=f"complete since {since}",
        )  # fmt: skip
        self.frontier = frontier
        self.since = since


class InvalidTokenError(InvalidInputError):
    """A resume token is damaged, of another stream, or of another version."""


# -- regions ---------------------------------------------------------------------------


class RegionError(HeadraceError):
    """Something that a region's cores do not allow; ``update`` and ``state`` name both sides.

    Nothing was changed.
    """

    def __init__(self, update: str, state: str, why: str) -> None:
        super().__init__(f"{update} while {state}: {why}")
        self.update = update
        self.state = state


class UnknownRegionError(RegionError, LookupError):
    """A marker or a command names a region that takes no part."""


class StaleResponseError(RegionError):
    """A response that came late, twice, or from an earlier round; it was not counted."""


class UnexpectedResponseError(RegionError):
    """A response to a round that was never asked for, or that was asked by another region."""


class SnapshotRefusedError(RegionError):
    """A snapshot cannot be started or forced now."""


class SnapshotOrderError(RegionError):
    """A snapshot does not follow those that are known."""


class UpdateAheadError(RegionError):
    """An update or an ack names a position that the log does not have."""


class StaleUpdateError(RegionError):
    """An update of a group from before it was deleted or set anew."""


class OriginOrderError(RegionError):
    """Events of one origin came with a gap, again, or at another place than the log's end."""


class CursorDeletedError(RegionError):
    """The replicated group was deleted; create it again to use it."""


class InvalidCursorDeltaError(RegionError, ValueError):
    """A record of a replicated cursor breaks its own rules."""


class InvalidMarkerError(InvalidInputError):
    """The bytes of a marker cannot be read."""
