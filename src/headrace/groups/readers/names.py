"""Names that a reader group derives from its own, and the record that its row holds.

A group's name is made of letters, digits, ``_`` and ``-``.  Everything derived holds a ``/`` and
neither ``.`` nor ``:``, as those of partitioned (``STREAM.GROUP``) and of shared groups
(``GROUP:FILTER``) always do; so no derived name is one of theirs, or one that a person can choose.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from headrace.catalog import Tx, reader_groups
from headrace.catalog.keys import named
from headrace.catalog.reader_groups import ReaderGroupRow
from headrace.catalog.records import Records, left_out
from headrace.errors import UnknownReaderGroupError
from headrace.groups.names import NAMES_KNOWN, FullName, NameForm, register
from headrace.groups.readers.core.segments import SegmentId
from headrace.subjects import check_name

FAMILY = "reader"
_PREFIX = f"{FAMILY}/"


def is_key(key: str) -> bool:
    """Whether a key, or the name of a row of progress, is that of a reader group."""
    return key.startswith(_PREFIX)


class ReaderGroupName(msgspec.Struct, frozen=True, order=True):
    """A reader group.

    >>> ReaderGroupName("report").key
    'reader/report'
    """

    group: str

    def __post_init__(self) -> None:
        check_name(self.group, "reader group name")

    def __str__(self) -> str:
        return self.key

    @property
    def key(self) -> str:
        """The name under which claims, progress and decisions are kept."""
        return f"{FAMILY}/{self.group}"

    @property
    def kept(self) -> str:
        """The name under which retention finds what a group keeps that is not its progress."""
        return f"{self.key}/kept/"

    @property
    def leases(self) -> str:
        """What the names of its readers' leases begin with."""
        return f"{self.key}/reader/"

    def lease(self, reader: str) -> str:
        """The lease that shows that a reader is alive."""
        return self.leases + check_name(reader, "reader name")


@lru_cache(maxsize=NAMES_KNOWN)
def _of_text(name: str) -> FullName:
    return FullName(FAMILY, "", ReaderGroupName(name).group)


def unit_of(segment: SegmentId) -> str:
    """The unit of a segment, in claims and in a consumer."""
    return str(segment)


class GroupStream(msgspec.Struct, frozen=True, array_like=True):
    """A stream that a group reads: a stream made anew under the name has another id."""

    name: str
    id: int


class ReaderGroupRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was said when a group was made; what its readers agree on is in their state."""

    id: int
    """The revision at which it began: tells apart groups of one name."""
    streams: tuple[GroupStream, ...]
    start: str
    """Where it began, in words."""
    begin: tuple[tuple[str, int, int], ...] = ()
    """Where it began, by stream, segment and offset."""
    filter: str | None = None
    end: str = ""
    """Where it ends, in words; empty: nowhere."""
    created_us: int = 0
    away: bool = False
    """Whether it is, or was since anybody read here, consumed in another region: where it stands
    is told by its progress, and no longer by the state of its readers."""

    def stream_id(self, name: str) -> int | None:
        """The id of one of its streams."""
        return next((each.id for each in self.streams if each.name == name), None)


_records = Records(
    ReaderGroupRecord, "reader group", "remove it with: headrace reader rm {name}", json=True
)


def encode(name: str, record: ReaderGroupRecord) -> bytes:
    """A record as it is stored."""
    return _records.encode(name, record)


def decode(row: ReaderGroupRow) -> ReaderGroupRecord:
    """The record of a group that is there."""
    assert row.config is not None
    return _decoded(row.name, row.config)


@lru_cache(maxsize=32)
def _decoded(name: str, config: bytes) -> ReaderGroupRecord:
    """Every update and every look needs the record, which seldom changes and may be long."""
    return _records.decode(name, config)


def require(tx: Tx, name: str) -> tuple[ReaderGroupRow, ReaderGroupRecord]:
    """A group that is there, or an error that says which are."""
    row = reader_groups.get(tx, name)
    if row is None or row.config is None:
        raise UnknownReaderGroupError(name, [each.name for each in reader_groups.all_rows(tx)])
    return row, decode(row)


def readable_rows(tx: Tx) -> list[ReaderGroupRow]:
    """Every group that there is, but for those whose name is damaged."""
    found = []
    for row in reader_groups.all_rows(tx):
        with left_out():
            named("reader-groups", row.name, _of_text)
            found.append(row)
    return found


def _listed(tx: Tx) -> list[FullName]:
    found = []
    for name in reader_groups.all_names(tx):
        with left_out():
            found.append(named("reader-groups", name, _of_text))
    return found


def _is_there(row: ReaderGroupRow | None) -> bool:
    return row is not None and row.config is not None


register(
    NameForm(
        family=FAMILY,
        takes="reader/GROUP",
        read=_of_text,
        text=lambda name: ReaderGroupName(name.group).key,
        key=lambda name: ReaderGroupName(name.group).key,
        listed=_listed,
        has=lambda tx, name: _is_there(reader_groups.get(tx, name.group)),
    )
)
