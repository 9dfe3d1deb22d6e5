"""Reader groups as people meet them: groups, readers, cuts and checkpoints.

What the state of a group refuses stands elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.errors.log import HeadraceError, InvalidInputError


class UnknownReaderGroupError(InvalidInputError, LookupError):
    """There is no reader group of that name."""

    def __init__(self, group: str, known: Sequence[str] = ()) -> None:
        there = f"there are: {', '.join(known[:20])}" if known else "there are none yet"
        super().__init__(f"there is no reader group {group!r}; {there}")
        self.group = group


class ReaderGroupExistsError(InvalidInputError):
    """A reader group of that name exists, and is another than the one that was asked for."""

    def __init__(self, group: str, differs: str) -> None:
        super().__init__(
            f"reader group {group!r} exists, with another {differs}; choose another name, "
            "configure or reset it, or delete it first"
        )
        self.group = group
        self.differs = differs


class ReaderBusyError(HeadraceError):
    """A reader of that name is alive elsewhere."""

    def __init__(self, group: str, reader: str, holder: str) -> None:
        super().__init__(
            f"reader {reader!r} of group {group!r} is alive: {holder} has the name; choose "
            "another one, or end that program first"
        )
        self.group = group
        self.reader = reader
        self.holder = holder


class SegmentNotReadError(HeadraceError):
    """A segment was reported as read to its end, and is not."""

    def __init__(self, group: str, segment: str, floor: int) -> None:
        super().__init__(
            f"{segment} cannot be completed: group {group!r} has acked it up to {floor} only"
        )
        self.segment = segment


class CutTrimmedError(InvalidInputError):
    """A cut or checkpoint lies before what is still kept of some segments."""

    def __init__(self, group: str, first: Mapping[str, int]) -> None:
        listed = ", ".join(f"{segment} begins at {offset}" for segment, offset in first.items())
        super().__init__(
            f"group {group!r} cannot go there, since events are no longer kept: {listed}"
        )
        self.group = group
        self.first = dict(first)


class InvalidCutTextError(InvalidInputError):
    """A text is not that of a cut or checkpoint, or is damaged."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"this is not the text of a {what}: {why}; give it just as it was printed")
        self.what = what


class ForeignCutError(InvalidInputError):
    """A cut or checkpoint of another catalog, or of a stream that was made anew."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"this {what} does not fit: {why}")
        self.what = what


class CheckpointTimeoutError(HeadraceError, TimeoutError):
    """A checkpoint or cut was not complete in time; ``blockers`` are the readers it waits for."""

    def __init__(self, group: str, what: str, blockers: Mapping[str, str], seconds: float) -> None:
        listed = "; ".join(f"{reader} ({why})" for reader, why in blockers.items()) or "nobody"
        super().__init__(
            f"{what} of group {group!r} is not complete after {seconds:g} s; it waits for: "
            f"{listed}. It may still complete: wait again, cancel it, or put the reader offline"
        )
        self.group = group
        self.blockers = dict(blockers)


class ReadersOnlineError(HeadraceError):
    """Readers of the group are online."""

    def __init__(self, group: str, readers: Sequence[str]) -> None:
        listed = ", ".join(readers[:10])
        super().__init__(
            f"readers of group {group!r} are online: {listed}; close them first, or force it"
        )
        self.group = group
        self.readers = tuple(readers)


class CheckpointGoneError(HeadraceError):
    """A checkpoint that somebody waited for was cancelled, or the group was reset meanwhile."""

    def __init__(self, group: str, what: str) -> None:
        super().__init__(
            f"{what} of group {group!r} will not complete: it was cancelled, or the group was "
            "reset meanwhile; take another one"
        )
        self.group = group


class NotRetainedByHandError(InvalidInputError):
    """``release`` is for groups that were made with retain="manual"."""

    def __init__(self, group: str, retain: str) -> None:
        super().__init__(
            f"group {group!r} retains {retain}, and releases by itself; configure it with "
            "retain='manual' to do so by hand"
        )
        self.group = group


class ReaderGroupElsewhereError(HeadraceError):
    """A reader group is replicated, and is not consumed in this region now."""

    def __init__(self, group: str, why: str, what: str = "nobody reads it here") -> None:
        super().__init__(f"reader group {group!r}: {what}: {why}")
        self.group = group
        self.why = why
