"""One class per failure that a person can meet, all under :class:`HeadraceError`.

Every message says what happened, to what, and what to do next.  Errors that carry data
carry it as attributes, so that a program never has to read a message.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose."""


# --- input ---------------------------------------------------------------------------------


class InvalidInputError(HeadraceError, ValueError):
    """An input breaks a rule; nothing was changed."""


class InvalidSubjectError(InvalidInputError):
    """A subject is malformed or too long."""


class InvalidFilterError(InvalidInputError):
    """A subject filter is malformed."""


class InvalidNameError(InvalidInputError):
    """A stream, group, member or producer name is malformed."""


# --- progress: acked ranges ------------------------------------------------------------------


class InvalidRangeError(InvalidInputError):
    """A range of offsets is backwards, out of bounds, or overlaps another."""


class ProgressDecodeError(HeadraceError, ValueError):
    """A stored progress record cannot have been written by this code."""


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


# --- catalog -------------------------------------------------------------------------------


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


class CatalogClosedError(CatalogError):
    """The catalog was closed; open it again."""


class DiskFullError(HeadraceError):
    """There is no room to write; nothing of the operation was kept."""


class AppenderClosedError(HeadraceError):
    """An append through an appender that takes no more."""


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


# --- log -----------------------------------------------------------------------------------


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


# --- store ---------------------------------------------------------------------------------


class StoreError(HeadraceError):
    """The store of batch files cannot be used as asked."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached or refused the request."""


# --- subjects ------------------------------------------------------------------------------


class InvalidPartitioningError(InvalidInputError):
    """A number of partitions or a wildcard number is out of range."""


class SubjectMismatchError(InvalidInputError):
    """A subject was to be partitioned by a filter that it does not pass."""

    def __init__(self, message: str, *, subject: str, filter: str) -> None:
        super().__init__(message)
        self.subject = subject
        self.filter = filter


# --- delivery ------------------------------------------------------------------------------


class DeliveryError(HeadraceError):
    """An event of the delivery core that is not allowed; nothing was changed."""


class InvalidDeliveryConfigError(InvalidInputError):
    """A delivery setting is out of its bounds."""


class InvalidDelayError(InvalidInputError):
    """A nack asks for a delay that is negative or too long."""


class FeedError(DeliveryError, ValueError):
    """Events fed to a dispatcher do not continue where it stands, or exceed what it wants."""


class UnknownDeliveryError(DeliveryError, LookupError):
    """An answer to a delivery that was never made."""

    def __init__(self, verb: str, offset: int, why: str) -> None:
        super().__init__(f"cannot {verb} offset {offset}: {why}")
        self.verb = verb
        self.offset = offset


class StaleDeliveryError(DeliveryError):
    """An answer that comes too late: the delivery it names no longer counts."""

    def __init__(self, verb: str, offset: int, attempt: int, state: str) -> None:
        super().__init__(f"cannot {verb} attempt {attempt} of offset {offset}: {state}")
        self.verb = verb
        self.offset = offset
        self.attempt = attempt


class AlreadyAckedError(DeliveryError):
    """A transaction acks what is acked already; it was not committed."""

    def __init__(self, group: str, unit: str, lo: int, hi: int) -> None:
        what = f"offset {lo}" if hi == lo + 1 else f"part of offsets {lo} to {hi - 1}"
        super().__init__(
            f"group {group!r}, unit {unit!r}: {what} is acked already, so the transaction was "
            "not committed; do not process it again"
        )
        self.group = group
        self.unit = unit
        self.lo = lo
        self.hi = hi


class UnknownTicketError(DeliveryError, LookupError):
    """An answer to a batch that was never handed out."""

    def __init__(self, verb: str, ticket: int) -> None:
        super().__init__(f"cannot {verb} batch {ticket}: it was never handed out")
        self.verb = verb
        self.ticket = ticket


class StaleBatchError(DeliveryError):
    """An answer that comes too late: the batch was answered, or timed out and comes again."""

    def __init__(self, verb: str) -> None:
        super().__init__(
            f"cannot {verb} this batch: it was answered before, or it timed out and comes again"
        )
        self.verb = verb


class AnsweredError(DeliveryError):
    """A delivery is answered once: it was acked, nacked or rejected before."""


class ConsumerClosedError(DeliveryError):
    """The consumer is closed, or has given the unit back: the answer does not count."""


class ConsumerModeError(DeliveryError):
    """A consumer is used event by event or in batches, not both."""


class UnknownUnitError(DeliveryError, LookupError):
    """A consumer is told about a unit that it does not hold."""


# --- shared groups -------------------------------------------------------------------------


class ProtocolError(HeadraceError):
    """A core was given something its state does not allow; its state is unchanged.

    ``replies`` are messages that the receiver may send back, so that a peer which has lost
    touch learns of it; sending them changes nothing either.
    """

    def __init__(self, message: str, *, state: str, replies: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.state = state
        self.replies = replies


class UnexpectedMessageError(ProtocolError):
    """A message or call that makes no sense in this state, or from this sender."""


class StaleTokenError(ProtocolError):
    """A message with the token of an ownership or a leadership that has passed on."""


class DeposedError(ProtocolError):
    """The leader has lost its lease; somebody else may lead now."""


class UnknownSubscriptionError(InvalidInputError):
    """A session has no shared subscription of that name."""


class UnknownSharedGroupError(HeadraceError, LookupError):
    """There is no shared group of that name."""


class SharedGroupExistsError(HeadraceError):
    """The shared group exists already, with other properties."""


class SharedGroupBusyError(HeadraceError):
    """The shared group has live members; delete it with force, or let them leave first."""

    def __init__(self, group: str, members: int) -> None:
        shown = "1 live member" if members == 1 else f"{members} live members"
        super().__init__(f"shared group {group} has {shown}; let them leave, or use force")
        self.group = group
        self.members = members


class AckUnsettledError(HeadraceError):
    """It is not known whether an ack counts: its leader was lost, and nobody leads since.

    The event comes again if it does not count.  Whoever was told :class:`Fenced` knows that its
    work does not count; here it may.
    """

    def __init__(self, units: tuple[str, ...]) -> None:
        super().__init__(
            f"it is not known whether acks of {', '.join(units)} count: the leader was lost before "
            "it said so; what does not count is delivered again"
        )
        self.units = units


class StartBeforeHistoryError(InvalidInputError):
    """Events after the wanted start are no longer kept; ``history_start`` is what still is."""

    def __init__(self, stream: str, wanted: str, history_start: str) -> None:
        super().__init__(
            f"start {wanted} lies before the history of stream {stream!r}, which begins at "
            f"{history_start}; start there or later, or at 'earliest'"
        )
        self.stream = stream
        self.history_start = history_start


class UnknownSessionError(HeadraceError, LookupError):
    """There is no session of that name."""


class SessionBusyError(HeadraceError):
    """The session is connected; close it first, or use force."""


class SessionTakenOverError(HeadraceError):
    """Another process has opened the session of this name; this one is over."""


class SessionClosedError(HeadraceError):
    """The session is closed, or was never opened; use it with ``async with``."""


class ListenError(HeadraceError):
    """This process cannot listen where shared groups need it to."""


class FrameError(HeadraceError, ValueError):
    """A frame of another process cannot be read; its connection is dropped."""


class SubscriptionExistsError(InvalidInputError):
    """A session has that shared subscription already."""


# --- partitioned groups ----------------------------------------------------------------------


class InvalidGroupConfigError(InvalidInputError):
    """The config of a partitioned group breaks a rule; nothing was changed."""


class MaxMembersError(InvalidGroupConfigError):
    """The number of partitions is out of its bounds."""


class GroupFilterError(InvalidGroupConfigError):
    """The filter is missing, malformed or has no wildcard to partition by."""


class PartitioningWildcardsError(InvalidGroupConfigError):
    """The wildcard indexes do not fit the filter."""


class BufferSizeError(InvalidGroupConfigError):
    """The size of the work queue is out of its bounds."""


class GroupMembersError(InvalidGroupConfigError):
    """The list of members is malformed, too long, or given together with mappings."""


class MemberMappingsError(InvalidGroupConfigError):
    """The mappings do not give every partition to exactly one member."""


class GroupAssignmentError(InvalidGroupConfigError):
    """The kept assignment does not fit the members and partitions."""


class GroupConfigDecodeError(InvalidGroupConfigError):
    """A stored config is not the record that it should be."""


class GroupExistsError(HeadraceError):
    """A group of that name exists with another config; delete it first."""


class UnknownGroupError(HeadraceError, LookupError):
    """There is no such group on the stream."""

    def __init__(self, stream: str, group: str, kind: str = "", hint: str = "") -> None:
        what = f"{kind} group" if kind else "group"
        super().__init__(f"stream {stream!r} has no {what} {group!r}{hint and f'; {hint}'}")
        self.stream = stream
        self.group = group


class UnknownMemberError(HeadraceError, LookupError):
    """The group has no member of that name."""


class NoActiveInstanceError(HeadraceError):
    """No instance of the member holds its pin, so there is none that could step down."""


class RoundOvertakenError(HeadraceError):
    """A round that filled a work queue came too late; nothing of it was appended."""

    def __init__(self, group: str, why: str) -> None:
        super().__init__(f"a round of group {group!r} does not count: {why}")
        self.group = group


class GroupUpdateError(HeadraceError):
    """A change that this group does not allow; nothing was changed."""


class MembershipEventError(HeadraceError):
    """An event that cannot happen to an instance in its state; nothing was changed."""

    def __init__(self, event: str, phase: str, why: str) -> None:
        super().__init__(f"{event} while {phase}: {why}")
        self.event = event
        self.phase = phase


# --- epochs --------------------------------------------------------------------------------


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
    """Data or a new capability at a time that no held time allows any more."""


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


# --- regions ---------------------------------------------------------------------------------


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


# --- reader groups ---------------------------------------------------------------------------


class ReaderGroupError(HeadraceError):
    """An update that the state of a reader group does not allow; nothing was changed.

    ``reason`` is a short word for programs; ``update`` and ``state`` say what met what.
    """

    reason = "refused"

    def __init__(self, update: str, state: str, why: str) -> None:
        super().__init__(f"{update}: {why} ({state})")
        self.update = update
        self.state = state
        self.why = why


class AlreadyMemberError(ReaderGroupError):
    """A reader of that name is online; put it offline first or choose another name."""

    reason = "already_member"


class NotMemberError(ReaderGroupError):
    """The reader is not online, or was put offline and must start again."""

    reason = "not_member"


class NotOwnerError(ReaderGroupError):
    """The reader does not own the segment."""

    reason = "not_owner"


class NotUnassignedError(ReaderGroupError):
    """The segment cannot be claimed: it is owned, waits for others, is over, or is unknown."""

    reason = "not_unassigned"


class CheckpointPendingError(ReaderGroupError):
    """The reader owes a checkpoint and must acknowledge it first."""

    reason = "checkpoint_pending"


class NotOverloadedError(ReaderGroupError):
    """The reader has no more than its share, so it keeps its segments."""

    reason = "not_overloaded"


class TooManyCheckpointsError(ReaderGroupError):
    """As many checkpoints as are allowed wait for readers already."""

    reason = "too_many_checkpoints"


class UnknownCheckpointError(ReaderGroupError, LookupError):
    """There is no complete checkpoint of that name."""

    reason = "unknown_checkpoint"


class PositionFellError(ReaderGroupError):
    """A position lies before the one recorded; only a reset moves a group back."""

    reason = "position_fell"


class InvalidReaderUpdateError(InvalidInputError):
    """An update, a cut or a setting of a reader group is malformed."""


class ReaderRevisionError(HeadraceError):
    """An update was decided on, or a log continues from, another revision than this one."""

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(
            f"the reader group is at revision {found}, not {expected}; catch up and decide again"
        )
        self.found = found
        self.expected = expected


class ReaderStateDecodeError(HeadraceError, ValueError):
    """A stored state or update of a reader group cannot have been written by this code."""


# --- spark: sink and partition job -----------------------------------------------------------


class InvalidSinkError(InvalidInputError):
    """A write to a stream was asked for with options or columns that do not fit it."""


class BadRowError(InvalidEventError):
    """A row of a data frame cannot be an event; ``partition`` and ``row`` say which one."""

    def __init__(self, partition: int, row: int, reason: str) -> None:
        super().__init__(
            f"partition {partition}, row {row}: {reason}; mend the query, or set deadLetterStream "
            "to put such rows aside",
            row=row,
        )
        self.partition = partition
        self.reason = reason


class ReplayMismatchError(HeadraceError):
    """A batch that was committed came again with other rows; these were not written."""

    def __init__(self, producer: str, sequence: int, committed: int, found: int) -> None:
        super().__init__(
            f"batch {sequence} of {producer} was committed with {committed} rows and comes again "
            f"with {found} others: the checkpoint is older than what was written, or the query "
            "does not repeat itself. Start it with a new checkpoint from where it should go on, "
            "or set replay=skip to pass over this batch"
        )
        self.producer = producer
        self.sequence = sequence
        self.committed = committed
        self.found = found


class StagedFileLostError(HeadraceError):
    """A file that a task wrote is gone before its batch was committed; nothing was written."""


# --- Spark: sessions and Java ------------------------------------------------------------------


class SparkSetupError(HeadraceError):
    """Spark cannot run here as asked; the message says what to install or change."""


class JavaMissingError(SparkSetupError):
    """There is no Java that Spark could run on."""


class JavaTooOldError(JavaMissingError):
    """There is a Java, and it is older than Spark needs."""


class ExecutorPackageError(SparkSetupError):
    """Executors lack this package, or have another version of it."""


# --- Spark: source -----------------------------------------------------------------------------


class InvalidOptionError(InvalidInputError):
    """An option of a Spark read or write is unknown, malformed, or contradicts another."""


class InvalidSchemaError(InvalidInputError):
    """A schema names a column that is not there, or gives it another type."""


class NotSharedError(SparkSetupError):
    """Executors on other machines cannot reach this catalog or store."""


class ForeignCheckpointError(HeadraceError):
    """A checkpoint belongs to another catalog or stream, or to a later state of this one."""


class DataLossError(HeadraceError):
    """Events that a query has not read yet are gone."""


# --- pipeline ------------------------------------------------------------------------------------


class UnknownJobError(HeadraceError, LookupError):
    """An event of a job that is not running."""


class PipelineLedError(HeadraceError):
    """Another supervisor leads the pipeline of this catalog."""


class PipelineBrokenError(HeadraceError):
    """The Spark application of a supervisor is gone; start it again."""
