"""Epochs, and regions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


class LivePublisherError(HeadraceError):
    """A live publisher is not open, or another one serves under its name; nothing was sent."""


class HistoryGoneError(EpochError):
    """Epochs at or after the wanted frontier are no longer there; ``since`` is what still is."""

    def __init__(self, frontier: object, since: object, *, what: str) -> None:
        super().__init__(
            f"{what}; start from {since} or later, or from now", update=f"start from {frontier}",
            state=f"complete since {since}",
        )  # fmt: skip
        self.frontier = frontier
        self.since = since


class NoEpochsError(InvalidInputError):
    """A stream that is not published by epochs was asked for them."""


class NotStoredError(InvalidInputError):
    """A stream that keeps nothing was asked for what it would have kept."""


class PublisherInUseError(EpochError):
    """Another program is the active one under this publisher's name."""

    def __init__(self, stream: str, publisher: str, owner: str) -> None:
        super().__init__(
            "another program is active under this name; stop it, leave standby=False out to wait "
            "for it, or choose another name",
            update=f"publisher {publisher!r} of stream {stream!r}",
            state=f"held by {owner}",
        )
        self.stream, self.publisher, self.owner = stream, publisher, owner


class PublisherClosedError(EpochError):
    """A publisher that has left, closed or aborted takes no more calls."""

    def __init__(self, stream: str, publisher: str, how: str) -> None:
        super().__init__(
            "open it again with hr.epoch_publisher",
            update=f"a call of publisher {publisher!r} of stream {stream!r}",
            state=f"it {how}",
        )


class EpochStreamError(InvalidInputError):
    """Events were sent to an epoch stream without saying which epoch they belong to."""

    def __init__(self, stream: str, *, stored: bool = True) -> None:
        how = (
            f"hr.epoch_publisher({stream!r}, NAME), or use headrace epoch publish; in Spark, give "
            "epochColumn or epoch"
        )
        if not stored:
            how = f"hr.live_publisher({stream!r}, NAME), or use headrace epoch publish"
        super().__init__(
            f"stream {stream!r} is published by epochs, and plain events belong to none; open {how}"
        )
        self.stream = stream


class LateEventError(EpochError):
    """Rows at times that their publisher no longer holds; nothing was written.

    ``times`` are the late ones, ``held`` what the publisher holds, ``frontier`` the stream's;
    ``rows`` and ``row`` (how many rows, and the first of them) where that is known.
    """

    def __init__(
        self,
        *,
        stream: str,
        publisher: str,
        times: Sequence[object],
        held: Sequence[object],
        frontier: Sequence[object],
        rows: int | None = None,
        row: int | None = None,
    ) -> None:
        self.stream, self.publisher = stream, publisher
        self.times, self.held, self.frontier = tuple(times), tuple(held), tuple(frontier)
        self.rows, self.row = rows, row
        count = "rows" if rows is None else f"{rows} row{'s' * (rows != 1)}"
        at = f"epoch {times[0]}" + (f" and {len(times) - 1} more" if len(times) > 1 else "")
        keeps = f"holds {_shown(held)} and later" if held else "holds nothing any more"
        first = "" if row is None else f"; the first is row {row}"
        super().__init__(
            f"{publisher!r} {keeps}, and what lies before a frontier is complete{first}",
            update=f"stream {stream!r}: {count} at {at}",
            state=f"frontier {_shown(frontier)}",
        )

    def counted_from(self, first: int) -> LateEventError:
        """The same, where the rows of that call are some of more, and the first has this number."""
        return LateEventError(
            stream=self.stream,
            publisher=self.publisher,
            times=self.times,
            held=self.held,
            frontier=self.frontier,
            rows=self.rows,
            row=None if self.row is None else first + self.row,
        )


class CapabilityError(InvalidInputError):
    """A capability that was dropped, or that its publisher lost with a take-over."""


class EpochLimitError(InvalidInputError):
    """More epochs, held times or publishers than one commit or stream may have."""


class PublisherLimitError(EpochLimitError):
    """A stream has as many publishers as it may have."""

    def __init__(self, stream: str, publisher: str, most: int) -> None:
        super().__init__(
            f"stream {stream!r} has {most} publishers, which is the most; {publisher!r} can join "
            "when another one has closed"
        )
        self.stream, self.publisher = stream, publisher


class UnknownPublisherError(EpochError, LookupError):
    """A stream has no publisher of that name (any more)."""

    def __init__(self, stream: str, publisher: str) -> None:
        super().__init__(
            "it never joined, or it was closed; open a publisher to join",
            update=f"a commit of {publisher!r}",
            state=f"it is no publisher of stream {stream!r}",
        )
        self.stream, self.publisher = stream, publisher


class EpochStreamEndedError(EpochError):
    """The stream was closed or aborted, for good; ``status`` tells which."""

    def __init__(self, stream: str, status: str, reason: str = "") -> None:
        told = f" ({reason})" if reason else ""
        super().__init__(
            "nothing more can be published; make another stream",
            update=f"a commit to stream {stream!r}",
            state=f"it is {status}{told}",
        )
        self.stream, self.status, self.reason = stream, status, reason


def _shown(times: Iterable[object]) -> str:
    return " ".join(str(time) for time in times) or "nothing"


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
