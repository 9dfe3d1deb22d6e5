"""The replicated groups of a catalog, as an agent knows them: read anew when something changed.

An agent looks many times a second, and a region may have thousands of groups.  So what follows from
their records is worked out once, and kept as long as the records and the configurations of their
streams are the same, which two short queries tell.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.catalog import Catalog, Row, Tx, entries, streams
from headrace.groups.homes import GROUPS_BUCKET, ORIGIN, SNAPSHOT, GroupRecord
from headrace.log.log import Log
from headrace.regions import kinds
from headrace.regions.records import LinkMember, groups
from headrace.regions.runtime.neighbours import Neighbours


class Roll(msgspec.Struct, frozen=True):
    """The groups, and what follows from their records."""

    records: dict[str, GroupRecord] = {}
    readers: dict[str, GroupRecord] = {}
    """Whose a row of progress is, by its name; of groups that are not deleted."""
    channels: frozenset[str] = frozenset()
    """Where news of their progress is told."""
    snapshots: dict[str, dict[str, GroupRecord]] = {}
    """The readers of each stream that has groups in the mode of snapshots."""

    @property
    def by_origin(self) -> list[str]:
        """The readers whose progress is translated."""
        return [reader for reader, record in self.readers.items() if record.mode == ORIGIN]

    def under_snapshots(self, stream: str) -> Mapping[str, GroupRecord]:
        """The readers of a stream in the mode of snapshots."""
        return self.snapshots.get(stream, {})

    def streams_under_snapshots(self) -> set[str]:
        """The streams of which a group is in the mode of snapshots."""
        return set(self.snapshots)


class Roster:
    """Keeps the roll of one catalog; one thread reads it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: tuple[object, Roll] | None = None

    def read(self) -> Roll:
        """The groups as they are now."""
        turns = self._catalog.turns

        def look(tx: Tx) -> tuple[object, Roll]:
            state = _state(tx, self._streams())
            if self._known is not None and self._known[0] == (turns, state):
                return self._known
            roll = _roll(tx)
            return (turns, _state(tx, _streams_of(roll))), roll

        self._known = self._catalog.read(look, snapshot=True)
        return self._known[1]

    def within(self, tx: Tx) -> Roll:
        """The groups as a transaction that may still fail sees them: nothing of it is kept."""
        if self._known is not None:
            known, roll = self._known
            if known == (self._catalog.turns, _state(tx, self._streams())):
                return roll
        return _roll(tx)

    def _streams(self) -> list[str]:
        return [] if self._known is None else _streams_of(self._known[1])


class TheirRosters:
    """The rolls of neighbours, each kept as long as its catalog is the one that was opened."""

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours
        self._known: dict[str, tuple[Log, Roster]] = {}

    def of(self, member: LinkMember) -> Roster:
        """The roster of a neighbour; opens its catalog where that is needed."""
        log = self._neighbours.log(member)
        opened, roster = self._known.get(member.region, (None, None))
        if roster is None or opened is not log:
            roster = Roster(log.catalog)
            self._known[member.region] = log, roster
        return roster


def _streams_of(roll: Roll) -> list[str]:
    return sorted({name for record in roll.records.values() for name in record.streams})


def _state(tx: Tx, names: list[str]) -> tuple[int, list[Row]]:
    """What is the same as long as a roll of groups of these streams is."""
    return entries.latest(tx, GROUPS_BUCKET), streams.configs(tx, names)


def _roll(tx: Tx) -> Roll:
    records = groups(tx)
    readers, channels = dict[str, GroupRecord](), set[str]()
    configs: kinds.Configs = {}
    for record in records.values():
        found = kinds.readers(tx, record, configs)
        channels |= kinds.channels(record, found)
        if not record.deleted:
            readers |= dict.fromkeys(found, record)
    return Roll(records, readers, frozenset(channels), _under_snapshots(records, readers))


def _under_snapshots(
    records: Mapping[str, GroupRecord], readers: Mapping[str, GroupRecord]
) -> dict[str, dict[str, GroupRecord]]:
    found: dict[str, dict[str, GroupRecord]] = {}
    for record in records.values():
        if record.mode == SNAPSHOT and not record.deleted:
            for stream in record.streams:
                found.setdefault(stream, {})
    for reader, record in readers.items():
        if record.mode == SNAPSHOT:
            for stream in record.streams:
                found[stream][reader] = record
    return found


def changed_records(
    mine: Mapping[str, GroupRecord], theirs: Mapping[str, GroupRecord]
) -> dict[str, GroupRecord]:
    """The records of a neighbour that something may have to be done about here."""
    return {
        key: record
        for key, record in theirs.items()
        if (known := mine.get(key)) is None or record.stamp > known.stamp or not known.ready
    }
