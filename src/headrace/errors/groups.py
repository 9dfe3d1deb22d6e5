"""Groups of every kind, and deliveries."""

from __future__ import annotations

from headrace.errors.log import HeadraceError, InvalidInputError


class InvalidRangeError(InvalidInputError):
    """A range of offsets is backwards, out of bounds, or overlaps another."""


class ProgressDecodeError(HeadraceError, ValueError):
    """A stored progress record cannot have been written by this code."""


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


# -- partitioned groups ----------------------------------------------------------------


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


class UnknownGroupNameError(UnknownGroupError, InvalidInputError):
    """No group of any kind has that name; ``known`` are names that there are."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        listed = f"there are: {', '.join(known)}" if known else "there are no groups yet"
        HeadraceError.__init__(self, f"there is no group {name!r}; {listed}")
        self.stream = ""
        self.group = self.name = name
        self.known = known


class AmbiguousGroupNameError(InvalidInputError):
    """Several groups have that plain name; ``known`` are their names in full."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"several groups are called {name!r}: say which of {', '.join(known)}")
        self.name = name
        self.known = known


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


# -- shared groups and sessions --------------------------------------------------------


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
    """A time before the history of a stream, which begins at ``history_start``.

    Events of then are no longer kept, or the stream was made later.
    """

    def __init__(self, stream: str, wanted: str, history_start: str) -> None:
        super().__init__(
            f"{wanted} lies before the history of stream {stream!r}, which begins at "
            f"{history_start}; give that time or a later one, or 'earliest'"
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


class SubscriptionExistsError(InvalidInputError):
    """A session has that shared subscription already."""


# -- operations ------------------------------------------------------------------------


class SeekOutsideError(InvalidInputError):
    """A seek beyond the head of a segment, or below what is kept of it."""

    def __init__(self, group: str, stream: str, kept: list[tuple[int, int, int]]) -> None:
        shown = ", ".join(f"{number}: {tail} to {head}" for number, tail, head in kept[:16])
        super().__init__(
            f"group {group}: stream {stream!r} does not have all of these places; by segment it "
            f"has {shown}{', …' if len(kept) > 16 else ''}"
        )
        self.group = group
        self.stream = stream
        self.kept = tuple(kept)


class UnknownUnitNameError(InvalidInputError):
    """Units that the group does not have."""

    def __init__(self, group: str, unknown: list[str], known: list[str]) -> None:
        shown = ", ".join(known[:16]) + (", …" if len(known) > 16 else "")
        what = f"has no {', '.join(unknown[:8])}" if unknown else "was given no units"
        super().__init__(f"group {group} {what}; its units are {shown}")
        self.group = group
        self.unknown = tuple(unknown)


class GroupMadeAnewError(HeadraceError):
    """The group was deleted and made again while the operation was on its way."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"group {group} was deleted and made anew meanwhile, and nothing was changed; look at "
            "it, and try again"
        )
        self.group = group


class NoLettersError(InvalidInputError):
    """No dead letter fits what was asked for."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"group {group} has no such dead letters, so there is nothing to do; see those there "
            f"are with: headrace group dead ls '{group}'"
        )
        self.group = group


class LetterGoneError(InvalidInputError):
    """There is no such dead letter: it was put back or discarded, or never was."""

    def __init__(self, group: str, id: int) -> None:
        super().__init__(
            f"group {group} has no dead letter {id}: it was put back or discarded, or never was"
        )
        self.group = group
        self.id = id


class TooManyLivesError(InvalidInputError):
    """Every letter that was chosen has died too often already."""

    def __init__(self, group: str, letters: int, lives_max: int) -> None:
        what = "the letter has" if letters == 1 else f"all {letters:,} letters have"
        super().__init__(
            f"group {group}: {what} died {lives_max} times or more, and would die again; mend what "
            f"they die of and raise lives_max, or discard them"
        )
        self.group = group
        self.lives_max = lives_max


class UndeliverableLetterError(InvalidInputError):
    """A letter cannot be published to its subject once more; nothing was put back."""

    def __init__(self, group: str, id: int, why: str) -> None:
        super().__init__(
            f"group {group}: letter {id} cannot be put back: {why}; nothing was put back, choose "
            "others or discard it"
        )
        self.group = group
        self.id = id


class LettersMovingError(HeadraceError):
    """Others put back or discard the same letters all the time."""

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group}: others are busy with the same letters; try later")
        self.group = group
