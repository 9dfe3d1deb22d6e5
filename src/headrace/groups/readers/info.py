"""A reader group as people see it: who reads what, what waits for whom, how far it is behind."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.catalog import Catalog, Tx, leases, spark_readers
from headrace.groups import decisions, homes
from headrace.groups.decisions import Decision, What
from headrace.groups.names import FullName
from headrace.groups.readers import names
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.shapes import LAG, GroupLag
from headrace.groups.view import group_lag

DECISIONS_SHOWN = 30
SEGMENTS_SHOWN = 20


class ReaderInfo(msgspec.Struct, frozen=True):
    """A reader that is online."""

    reader: str
    instance: str
    """The program that it runs in."""
    segments: tuple[str, ...]
    lag_ms: int
    owes: tuple[str, ...]
    """Checkpoints that wait for it."""
    lease_ends_in_ms: int
    """Below 0 it is dead, and will be put offline."""


class CheckpointInfo(msgspec.Struct, frozen=True):
    """A checkpoint that is known by name."""

    name: str
    kind: str
    status: str
    blockers: tuple[str, ...]
    """The readers that it waits for."""
    positions: Mapping[str, int]


class ReaderGroupInfo(msgspec.Struct, frozen=True):
    """A group, as it stood at one moment."""

    group: str
    streams: tuple[str, ...]
    start: str
    end: str
    filter: str | None
    retain: str
    checkpoint_every_s: float
    checkpoints_kept: int
    checkpoints_outstanding: int
    revision: int
    readers: tuple[ReaderInfo, ...]
    unassigned: tuple[str, ...]
    """Segments that nobody reads."""
    waiting: Mapping[str, tuple[str, ...]]
    """Segments that are not read yet, and the predecessors that have to be read first."""
    checkpoints: tuple[CheckpointInfo, ...]
    last_checkpoint: str
    end_of_data: bool
    waits: str = ""
    """Why readers wait in this region, of a group that is in several; empty if they may read."""


class ReaderGroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a line."""

    group: str
    streams: tuple[str, ...]
    readers: int
    segments: int
    unassigned: int
    """Segments that nobody reads."""
    last_checkpoint: str


class SegmentLag(msgspec.Struct, frozen=True, rename=LAG):
    """What is not acked of a segment, up to the end of the group if it has one."""

    segment: str
    reader: str
    """Empty if nobody reads it."""
    events: int
    bytes: int
    seconds: float
    exact: bool = True
    """False where the group's filter may exclude some of the events."""


class ReaderLag(msgspec.Struct, frozen=True, rename=LAG):
    """The segments of a reader together; of all that nobody reads, if it has no name."""

    reader: str
    segments: int
    events: int
    bytes: int
    seconds: float


class ReaderGroupLag(msgspec.Struct, frozen=True, rename=LAG):
    """A group, its readers and its segments."""

    group: str
    events: int
    bytes: int
    seconds: float
    readers: tuple[ReaderLag, ...]
    segments: tuple[SegmentLag, ...]
    exact: bool = True
    waits: str = ""
    """Why readers wait in this region, of a group that is in several; empty if they may read."""


class ReaderExplanation(msgspec.Struct, frozen=True):
    """What a group is doing and why."""

    group: str
    lines: tuple[str, ...]
    decisions: tuple[Decision, ...]


class _Seen:
    """A group, read in one snapshot."""

    def __init__(self, tx: Tx, group: str) -> None:
        self.tx = tx
        row, self.record = names.require(tx, group)
        replica = StampedReplica(group)
        replica.catch_up(tx, row)
        self.state: ReaderGroupState = replica.state
        self.name = ReaderGroupName(group)


def read_info(catalog: Catalog, group: str) -> ReaderGroupInfo:
    """A group as it stands."""
    return catalog.read(lambda tx: _info(_Seen(tx, group)), snapshot=True)


def read_config(catalog: Catalog, group: str) -> GroupConfig:
    """What the readers of a group agree on."""
    return catalog.read(lambda tx: _Seen(tx, group).state.config, snapshot=True)


def _info(seen: _Seen) -> ReaderGroupInfo:
    state, record, tx = seen.state, seen.record, seen.tx
    held = {
        lease.name.removeprefix(seen.name.leases): lease
        for lease in leases.beginning_with(tx, seen.name.leases)
    }
    now_us = tx.now_us()
    readers = tuple(
        ReaderInfo(
            member.name,
            held[member.name].owner if member.name in held else "",
            tuple(sorted(map(str, member.owned))),
            member.lag_ms or 0,
            state.checkpoints.owed_by(member.name),
            (held[member.name].expires_us - now_us) // 1000 if member.name in held else -1,
        )
        for member in state.members.values()
    )
    last = state.checkpoints.last
    return ReaderGroupInfo(
        group=seen.name.group,
        streams=tuple(stream.name for stream in record.streams),
        start=record.start,
        end=record.end,
        filter=record.filter,
        retain=state.config.retain.value,
        checkpoint_every_s=state.config.checkpoint_every_ms / 1000,
        checkpoints_kept=state.config.checkpoints_kept_max,
        checkpoints_outstanding=state.config.checkpoints_outstanding_max,
        revision=state.revision,
        readers=readers,
        unassigned=tuple(map(str, state.unassigned)),
        waiting={str(s): tuple(sorted(map(str, p))) for s, p in state.future.items()},
        checkpoints=tuple(
            CheckpointInfo(
                each.name,
                each.kind.value,
                each.status.value,
                tuple(each.pending),
                {str(s): at for s, at in each.positions.items()},
            )
            for each in state.checkpoints.all()
        ),
        last_checkpoint="" if last is None else last.name,
        end_of_data=state.end_of_data,
        waits=homes.waits_here(tx, seen.name.key),
    )


def summary(catalog: Catalog, group: str) -> ReaderGroupSummary:
    """A group in a line."""
    found = read_info(catalog, group)
    owned = sum(len(reader.segments) for reader in found.readers)
    return ReaderGroupSummary(
        group=group,
        streams=found.streams,
        readers=len(found.readers),
        segments=owned + len(found.unassigned),
        unassigned=len(found.unassigned),
        last_checkpoint=found.last_checkpoint,
    )


# --- lag -----------------------------------------------------------------------------------


def read_lag(catalog: Catalog, group: str) -> ReaderGroupLag:
    """How far a group is behind: the lag that groups of every kind have, by reader."""

    def look(tx: Tx) -> tuple[GroupLag, list[str], str]:
        seen = _Seen(tx, group)
        waits = homes.waits_here(tx, seen.name.key)
        return group_lag(tx, FullName(names.FAMILY, "", group)), list(seen.state.members), waits

    whole, online, waits = catalog.read(look, snapshot=True)
    parts = [
        SegmentLag(u.unit, u.member or "", u.events, u.bytes, u.seconds, u.exact)
        for u in whole.units
    ]
    by_reader: dict[str, list[SegmentLag]] = {name: [] for name in online}
    for part in parts:
        by_reader.setdefault(part.reader, []).append(part)
    readers = tuple(
        ReaderLag(
            reader,
            len(mine),
            sum(each.events for each in mine),
            sum(each.bytes for each in mine),
            max((each.seconds for each in mine), default=0.0),
        )
        for reader, mine in by_reader.items()
    )
    return ReaderGroupLag(
        group=group,
        events=whole.events,
        bytes=whole.bytes,
        seconds=whole.seconds,
        readers=readers,
        segments=tuple(each for each in parts if each.events or each.reader),
        exact=whole.exact,
        waits=waits,
    )


# --- why -----------------------------------------------------------------------------------


def explain(catalog: Catalog, group: str) -> ReaderExplanation:
    """Who reads what and since when, what waits for whom, and what was decided lately."""

    def look(tx: Tx) -> ReaderExplanation:
        seen = _Seen(tx, group)
        recorded = decisions.read(tx, str(seen.name), limit=200)
        lines = _lines(seen, _info(seen), why_it_waits(recorded), open_batches(tx, group))
        return ReaderExplanation(group, tuple(lines), tuple(recorded[-DECISIONS_SHOWN:]))

    return catalog.read(look, snapshot=True)


def _lines(
    seen: _Seen,
    info: ReaderGroupInfo,
    told: Mapping[tuple[str, str], str],
    batches: Mapping[str, str],
) -> list[str]:
    lines = [
        f"group {info.group} reads {', '.join(info.streams) or 'nothing'} from {info.start}"
        + (f" to {info.end}" if info.end else "")
        + f"; revision {info.revision}"
    ]
    if info.end_of_data:
        lines.append("it has come to its end: nothing is left to read")
    if info.waits:
        lines.append(f"readers wait in this region: {info.waits}")
    elif not info.readers:
        lines.append("nobody reads: no reader is online")
    for reader in info.readers:
        where = f" in {reader.instance}" if reader.instance else ""
        line = f"reader {reader.reader}{where} reads {_listed(reader.segments)}"
        if reader.lag_ms:
            line += f", {reader.lag_ms / 1000:.1f} s behind"
        if reader.lease_ends_in_ms < 0:
            line += "; it seems dead, and will be put offline by whoever looks next"
        if reader.reader in batches:
            line += f"; {batches[reader.reader]}"
        lines.append(line)
    if info.unassigned and not info.waits:
        lines.append(f"nobody reads {_listed(info.unassigned)} yet")
    for segment, before in list(info.waiting.items())[:SEGMENTS_SHOWN]:
        readers = {
            owner.name
            for each in before
            if (owner := seen.state.owner(SegmentId.parse(each))) is not None
        }
        lines.append(
            f"{segment} waits until {_listed(before)} is read"
            + (f", by {', '.join(sorted(readers))}" if readers else "")
        )
    for checkpoint in info.checkpoints:
        for reader_name in checkpoint.blockers:
            why = batches.get(reader_name, "it has events in flight")
            why = told.get((checkpoint.name, reader_name), why)
            lines.append(f"checkpoint {checkpoint.name!r} waits for {reader_name}: {why}")
    return lines


def _listed(segments: tuple[str, ...]) -> str:
    if not segments:
        return "nothing"
    shown = ", ".join(segments[:SEGMENTS_SHOWN])
    left = len(segments) - SEGMENTS_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown


def open_batches(tx: Tx, group: str) -> dict[str, str]:
    """What holds up readers that are Spark queries: the batches that they have open."""
    if not spark_readers.lines_of_group(tx, group):
        return {}
    from headrace.groups.readers.runtime.spark_records import unsettled  # loads numpy

    return {
        reader: f"a batch of Spark is open, {opening.events} events of "
        f"{len(opening.spans)} segments"
        for reader, opening in unsettled(tx, group).items()
    }


def why_it_waits(recorded: list[Decision]) -> dict[tuple[str, str], str]:
    """{(checkpoint, reader): why it could not answer}, as far as readers have told."""
    found = {}
    for each in recorded:
        if each.what is What.WAITS and each.source and each.reason.startswith("checkpoint '"):
            name, _, why = each.reason.removeprefix("checkpoint '").partition("': ")
            found[name, each.source] = why
    return found
