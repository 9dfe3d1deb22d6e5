"""Streams, segments, appends and reads."""

from __future__ import annotations

from headrace.errors.inputs import HeadraceError, InvalidInputError


class AppenderClosedError(HeadraceError):
    """An append through an appender that takes no more."""


class UnknownStreamError(HeadraceError, LookupError):
    """There is no stream of that name."""


class StreamExistsError(HeadraceError):
    """A stream of that name exists already, with another configuration."""


class StreamInUseError(HeadraceError):
    """Groups consume the stream; delete them first, or use force."""

    def __init__(self, stream: str, groups: list[str]) -> None:
        shown = ", ".join(groups[:10]) + (", …" if len(groups) > 10 else "")
        super().__init__(
            f"stream {stream!r} is consumed by {shown}; delete what consumes it, or use force"
        )
        self.stream = stream
        self.groups = tuple(groups)


class InternalStreamError(HeadraceError):
    """The stream belongs to a group and only changes with it."""


class SubjectOverlapError(HeadraceError):
    """A new stream's filters would capture subjects of an existing stream."""


class NoStreamError(HeadraceError, LookupError):
    """No stream captures the subject."""


class UnknownSegmentError(HeadraceError, LookupError):
    """The stream has no segment of that number."""


class SegmentSealedError(HeadraceError):
    """The segment is sealed: it takes no more events and cannot be scaled again."""


class TilingError(InvalidInputError):
    """New key ranges do not cover exactly the ranges of the sealed segments."""


class HeadMoved(HeadraceError):
    """A conditional append found another head than it expected; nothing was written."""

    def __init__(self, stream: str, segment: int, expected: int, head: int) -> None:
        super().__init__(
            f"stream {stream!r} segment {segment}: expected head {expected}, but it is at {head}; "
            "read what came since and decide again"
        )
        self.stream = stream
        self.segment = segment
        self.expected = expected
        self.head = head


class SequenceError(HeadraceError):
    """A producer sent a sequence too far back for its positions to be known still."""


class TrimmedError(HeadraceError):
    """A read starts below what is retained; ``first`` is the first offset that is."""

    def __init__(self, stream: str, segment: int, offset: int, first: int) -> None:
        super().__init__(
            f"stream {stream!r} segment {segment}: offset {offset} was trimmed; "
            f"the first retained offset is {first}"
        )
        self.stream = stream
        self.segment = segment
        self.offset = offset
        self.first = first


class DamagedBatchError(HeadraceError):
    """A stored batch is damaged or missing; it covers offsets ``start`` to ``end`` - 1."""

    def __init__(self, stream: str, segment: int, start: int, end: int, reason: str) -> None:
        super().__init__(
            f"stream {stream!r} segment {segment}: the batch with offsets {start} to {end - 1} is "
            f"damaged ({reason}); restore it, or read on with skip_damaged"
        )
        self.stream = stream
        self.segment = segment
        self.start = start
        self.end = end
        self.reason = reason
