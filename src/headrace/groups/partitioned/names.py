"""Names that a partitioned group derives from its stream and its own name.

Stream, group and member names are made of letters, digits, ``_`` and ``-``.  Everything derived
joins them with a character that is in none of them, so two groups never share a derived name
(``a-b`` with ``c`` and ``a`` with ``b-c`` differ), no derived name is one that a person can
choose, and each can be taken apart again.  Deletion compares whole names, never beginnings.
"""

from __future__ import annotations

import msgspec

from headrace.errors import InvalidNameError
from headrace.subjects import check_name

STATIC_BUCKET = "static-consumer-groups"
ELASTIC_BUCKET = "elastic-consumer-groups"
_JOIN = "."
PINS = "pin."
"""How the names of pins begin: ``pin.STREAM.GROUP.MEMBER``."""
_MEMBER = "member"
_CONSUMED = "consumed"


class GroupName(msgspec.Struct, frozen=True, order=True):
    """A group of a stream.

    >>> GroupName("orders", "billing").work_queue
    'orders.billing'
    """

    stream: str
    group: str

    def __post_init__(self) -> None:
        check_name(self.stream, "stream name")
        check_name(self.group, "group name")

    @property
    def key(self) -> str:
        """The key of the config entry in its bucket."""
        return f"{self.stream}{_JOIN}{self.group}"

    @property
    def work_queue(self) -> str:
        """The work-queue stream of an elastic group."""
        return self.key

    @property
    def partition_job(self) -> str:
        """The name under which the filling of the work queue keeps its place in the source."""
        return f"{self.key}{_JOIN}partition"

    @property
    def consumed(self) -> str:
        """The name under which a replicated elastic group keeps what is acked of its source."""
        return f"{self.key}{_JOIN}{_CONSUMED}"

    @property
    def dead_letters(self) -> str:
        """The stream of the events that the group gave up on."""
        return f"{self.key}{_JOIN}dead"

    @property
    def lock(self) -> str:
        """Held while the group is made, changed or deleted, and while its units are claimed."""
        return f"group:{self.key}"

    def share(self, member: str) -> str:
        """The name under which a member of a static group keeps its place, where it has its own."""
        return _JOIN.join((self.key, _MEMBER, check_name(member, "member name")))

    def pin(self, member: str) -> str:
        """The lease that the active instance of a member holds."""
        return f"{PINS}{self.key}{_JOIN}{check_name(member, 'member name')}"

    def owns(self, derived: str) -> bool:
        """Whether a work queue, an entry or a pin belongs to this very group."""
        return self.key == derived or derived.startswith(f"{PINS}{self.key}{_JOIN}")

    @staticmethod
    def is_consumed(derived: str) -> bool:
        """Whether this is what some elastic group has acked of its source.

        >>> GroupName.is_consumed(GroupName("orders", "billing").consumed)
        True
        """
        parts = derived.split(_JOIN)
        return len(parts) == 3 and parts[2] == _CONSUMED and ":" not in derived

    @classmethod
    def of_consumed(cls, derived: str) -> GroupName:
        """The group whose :attr:`consumed` this is."""
        return cls.of_key(derived.removesuffix(f"{_JOIN}{_CONSUMED}"))

    @staticmethod
    def source_of_share(derived: str) -> str | None:
        """The stream of the group that this is a member's share of; None if it is no share."""
        parts = derived.split(_JOIN)
        return parts[0] if len(parts) == 4 and parts[2] == _MEMBER else None

    @classmethod
    def of_key(cls, key: str) -> GroupName:
        """The group whose entry or work queue has this name."""
        parts = key.split(_JOIN)
        if len(parts) != 2:
            raise InvalidNameError(f"{key!r} is not a stream and a group joined by {_JOIN!r}")
        return cls(*parts)
