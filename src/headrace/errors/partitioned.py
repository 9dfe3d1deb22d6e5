"""Partitioned groups: their configuration, members and rounds."""

from __future__ import annotations

from headrace.errors.inputs import HeadraceError, InvalidInputError


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
