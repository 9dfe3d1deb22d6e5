"""Inputs, streams, catalog, store and network, and what all errors have in common."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose."""


class InvalidInputError(HeadraceError, ValueError):
    """An input breaks a rule; nothing was changed."""


class InvalidSubjectError(InvalidInputError):
    """A subject is malformed or too long."""


class InvalidFilterError(InvalidInputError):
    """A subject filter is malformed."""


class InvalidNameError(InvalidInputError):
    """A stream, group, member or producer name is malformed."""


class InvalidEventError(InvalidInputError):
    """An event breaks a rule; ``row`` is its place in the input."""

    def __init__(self, message: str, *, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class EventTooLargeError(InvalidEventError):
    """A value, key or header is larger than the limits allow."""


class AppendTooLargeError(InvalidInputError):
    """One append holds more rows or bytes than fit in one transaction."""


class InvalidConfigError(InvalidInputError):
    """A stream's configuration breaks a rule."""


class InvalidPositionError(InvalidInputError):
    """A start or an end of a read is not a place in the stream."""


class InvalidPartitioningError(InvalidInputError):
    """A number of partitions or a wildcard number is out of range."""


class SubjectMismatchError(InvalidInputError):
    """A subject was to be partitioned by a filter that it does not pass."""

    def __init__(self, message: str, *, subject: str, filter: str) -> None:
        super().__init__(message)
        self.subject = subject
        self.filter = filter


# -- streams, segments, appends and reads ----------------------------------------------


class AppenderClosedError(HeadraceError):
    """An append through an appender that takes no more."""


class UnknownStreamError(HeadraceError, LookupError):
    """There is no stream of that name."""


class StreamExistsError(HeadraceError):
    """A stream of that name exists already, with another configuration."""


class OtherEpochsError(StreamExistsError):
    """A stream of that name exists already, with other epochs or none, which cannot be changed."""


class StreamInUseError(HeadraceError):
    """Groups consume the stream; delete them first, or use force."""

    def __init__(self, stream: str, groups: list[str]) -> None:
        shown = ", ".join(groups[:10]) + (", …" if len(groups) > 10 else "")
        super().__init__(
            f"stream {stream!r} is consumed by {shown}; delete what consumes it, or use force"
        )
        self.stream = stream
        self.groups = tuple(groups)


class InternalStreamError(InvalidInputError):
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


class SequenceReusedError(SequenceError):
    """A producer sent other events under a sequence that it had used; nothing was written."""

    def __init__(self, producer: str, sequence: int, last: int) -> None:
        super().__init__(
            f"producer {producer!r}: sequence {sequence} stands for other events already; go on "
            f"after {last}, its last one, or choose another name for the producer"
        )
        self.producer = producer
        self.sequence = sequence
        self.last = last


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


class SegmentGoneError(TrimmedError):
    """A place lies in a segment that is gone: it was sealed, and all of it was trimmed."""

    def __init__(self, stream: str, segment: int, offset: int, first: int) -> None:
        super().__init__(stream, segment, offset, first)
        self.args = (
            f"stream {stream!r} segment {segment}: offset {offset} is gone with its segment, which "
            "was sealed and trimmed to its end; read from 'earliest', a time, or what followed it",
        )


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


# -- the catalog and the store ---------------------------------------------------------


class CatalogError(HeadraceError):
    """The catalog cannot be used as asked."""


class UnknownSchemeError(CatalogError, ValueError):
    """A catalog or store URL has a scheme that Headrace does not know."""


class NotACatalogError(CatalogError):
    """The place given exists and is not a Headrace catalog; it was left alone."""


class CatalogTooNewError(CatalogError):
    """The catalog was written by a newer Headrace."""

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(
            f"{where} has schema version {found}, and this Headrace knows versions up to {known}: "
            "upgrade Headrace to open it"
        )
        self.found = found
        self.known = known


class CatalogUnavailableError(CatalogError):
    """The catalog cannot be reached or did not answer."""


class CatalogForbiddenError(CatalogError):
    """The role that the catalog was opened with lacks a right."""


class CatalogReadOnlyError(CatalogError):
    """The catalog can be read and not written: a standby, or a transaction set to read-only."""


class UnsafeServerError(CatalogError):
    """The database server, or what stands before it, would break a promise of Headrace."""


class CatalogWentBackError(CatalogError):
    """The catalog has another history than before; what was known of it may never have been."""


class CatalogClosedError(CatalogError):
    """The catalog was closed; open it again."""


class WrongLoopError(HeadraceError, RuntimeError):
    """A log is used on the event loop that it was opened on, and that is one of asyncio."""


class ForkedError(CatalogClosedError):
    """The log was opened before this process was forked off; it has to open one of its own."""

    def __init__(
        self, message: str = "this log was opened before a fork; open it again in this process"
    ) -> None:
        super().__init__(message)


class UnreadableRecordError(CatalogError):
    """A record of the catalog cannot be read; ``name`` is whose it is.  All others can be."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class DiskFullError(HeadraceError):
    """There is no room to write; nothing of the operation was kept."""


class ConflictError(HeadraceError):
    """A conditional change found another revision than it expected."""

    def __init__(self, bucket: str, key: str, expected: int, found: int) -> None:
        wanted = "no entry" if expected == 0 else f"revision {expected}"
        actual = "there is none" if found == 0 else f"it is at revision {found}"
        super().__init__(
            f"entry {key!r} in {bucket!r}: expected {wanted}, but {actual}; read it again and retry"
        )
        self.bucket = bucket
        self.key = key
        self.expected = expected
        self.found = found


class LeaseLost(HeadraceError):
    """A lease is no longer held under the token given."""

    def __init__(self, name: str, token: int) -> None:
        super().__init__(
            f"lease {name!r} is no longer held under token {token}: it expired, was released or "
            "was taken over; acquire it again"
        )
        self.name = name
        self.token = token


class Fenced(HeadraceError):
    """The caller's token is stale: the unit is no longer the caller's, and the work does not count.

    ``current`` is the token that the catalog holds, 0 if it holds none, and None where the refusal
    came without looking there.
    """

    def __init__(self, group: str, unit: str, token: int, current: int | None = None) -> None:
        if current is None:
            now = ""
        elif current == 0:
            now = ", the unit has no owner"
        elif current == token:
            now = ", the unit was given back"
        else:
            now = f", the current one is {current}"
        super().__init__(
            f"group {group!r}, unit {unit!r}: token {token} is stale{now}; stop working on this "
            "unit"
        )
        self.group = group
        self.unit = unit
        self.token = token
        self.current = current


class StoreError(HeadraceError):
    """The store of batch files cannot be used as asked."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached or refused the request."""


# -- between processes -----------------------------------------------------------------


class ListenError(HeadraceError):
    """This process cannot listen where others are to reach it."""


class FrameError(HeadraceError, ValueError):
    """A frame of another process cannot be read; its connection is dropped."""


class TLSError(InvalidInputError):
    """Certificate, key or authority cannot be used; says which, and why."""


class PeerRefusedError(HeadraceError):
    """Another process is not spoken to, since it is not verified as one of this catalog's."""


# -- tests that drive the clock --------------------------------------------------------


class ClockStoodStillError(HeadraceError):
    """A test waits for something that only time can bring, and nobody moves the clock."""

    def __init__(self, patience_s: float, due_s: float | None) -> None:
        due = "no timer is set" if due_s is None else f"the next timer is due in {due_s:g} s"
        super().__init__(
            f"nothing can run, and for {patience_s:g} s no socket and no thread had anything to "
            f"say; {due}: move the clock with `await driven_clock().advance(…)`, or let it jump by "
            "itself with autojump=True"
        )
