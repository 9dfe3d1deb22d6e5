"""Regions: snapshots, replicated cursors and their markers."""

from __future__ import annotations

from headrace.errors.inputs import HeadraceError, InvalidInputError


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
