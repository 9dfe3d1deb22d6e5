"""A leader's durable state in the catalog: loading it, and storing a commit.

Per unit: the claim (owner and token), the progress, and an entry if it is finished.  Every write
checks the token of the group's lease first, so a leader that was replaced cannot change a thing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from headrace.catalog import Tx, claims, entries, leases, progress
from headrace.groups.consumer.acks import decode
from headrace.groups.progress import Progress
from headrace.groups.shared import starts
from headrace.groups.shared.core.messages import Unit, unit_of
from headrace.groups.shared.core.records import ClaimRecord, Commit, ProgressRecord, StoredUnit

LOCKS_MAX = 500
"""Units in one transaction; PostgreSQL holds a lock for each of them."""


SLOTS = 32
"""Commits whose claims are remembered with the progress that they began with."""


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """A unit that changed hands, and how far the group had come in it."""

    unit: Unit
    unit_token: int
    progress: Progress


class SegmentKey(msgspec.Struct, frozen=True):
    """Which row of the log a unit is."""

    stream_id: int
    segment_id: int


def lease_name(group: str) -> str:
    """The lease of a group's leader."""
    return f"leader {group}"


def claim_unit(group: str, unit: Unit) -> str:
    """A unit as its claim names it: one consumer may have the same segment in two groups."""
    return f"{unit}@{group}"


def unit_of_claim(name: str) -> Unit:
    """The inverse of :func:`claim_unit`."""
    return name.partition("@")[0]


def decode_handed(data: bytes) -> list[Handed]:
    """The hand-overs of one commit."""
    return _handed.decode(data)


def load(tx: Tx, group: str, filter: str) -> list[StoredUnit]:
    """Everything that is stored about the units of a group that exist."""
    tokens = {
        unit_of_claim(name): int(token)
        for name, token in tx.rows("SELECT unit, token FROM claims WHERE group_name = ?", (group,))
    }
    rows = {
        int(segment_id): (int(floor), bytes(state))
        for segment_id, floor, state in tx.rows(
            "SELECT segment_id, floor, state FROM progress WHERE group_name = ?", (group,)
        )
    }
    over = starts.finished(tx, group)
    stored = []
    for stream in starts.matching(tx, filter):
        for segment in stream.segments:
            unit = unit_of(stream.name, segment.number)
            token = tokens.get(unit, 0)
            found = rows.get(segment.id)
            if found is None and not token:
                continue
            place = progress.Progress(group, segment.id, *(found or (segment.tail, b"")))
            finished = over.get(unit) == segment.id
            stored.append(StoredUnit(unit, token, decode(place), finished))
    return stored


def is_long(commit: Commit, units_max: int = LOCKS_MAX) -> bool:
    """Whether a commit has to be stored in parts."""
    return len(commit.progress) + len(commit.claims) + len(commit.forget) > units_max


def parts(commit: Commit, units_max: int = LOCKS_MAX) -> Iterator[Commit]:
    """A commit in parts that are stored one after the other; each may be stored again."""
    if not is_long(commit, units_max):
        yield commit
        return
    records = iter(
        (*commit.progress, *commit.claims, *commit.forget)  # in the order in which they count
    )
    while part := tuple(islice(records, units_max)):
        yield msgspec.structs.replace(
            commit,
            progress=tuple(r for r in part if isinstance(r, ProgressRecord)),
            claims=tuple(r for r in part if isinstance(r, ClaimRecord)),
            forget=tuple(r for r in part if isinstance(r, str)),
        )


def locks(group: str, commit: Commit) -> tuple[str, ...]:
    """What a commit depends on."""
    units = {r.unit for r in commit.progress} | {r.unit for r in commit.claims}
    names = [claims.lock(group, claim_unit(group, unit)) for unit in units]
    if commit.forget or any(record.finished for record in commit.progress):
        names.append(entries.lock(starts.finished_bucket(group)))
    if commit.claims:
        names.append(entries.lock(starts.handed_bucket(group)))
    return (leases.lock(lease_name(group)), *names)


def run_commit(
    tx: Tx,
    group: str,
    commit: Commit,
    segments: Mapping[Unit, SegmentKey],
    part: int = 0,
    written: dict[int, bytes] | None = None,
    subscribed: Collection[int] = (),
) -> list[tuple[Unit, Progress]]:
    """Store a commit; returns the merged progress of each unit that it claims.

    `written` is what this leader wrote last, per segment: a row that is still that needs no
    merging.  `subscribed` are streams that are known to be subscribed.

    Raises ``LeaseLost`` if somebody else leads, and ``Fenced`` if a claim's token is not new.
    """
    leases.check(tx, lease_name(group), commit.token)
    written = {} if written is None else written
    known = [record for record in commit.progress if record.unit in segments]
    if not commit.claims and _put_again(tx, group, known, segments, written):
        starts.forget(tx, group, commit.forget)
        return []
    for stream_id in {segments[record.unit].stream_id for record in known}:
        if stream_id not in subscribed:
            progress.subscribe(tx, stream_id, group)
    wanted = {r.unit for r in known} | {r.unit for r in commit.claims if r.unit in segments}
    stored = _read(tx, group, [segments[unit].segment_id for unit in wanted])
    fresh: list[tuple[str, int, int, bytes]] = []
    for record in known:
        key = segments[record.unit].segment_id
        before = stored.get(key)
        if before is None or before.state == written.get(key):
            merged = record.progress
        else:
            merged = decode(before).merge(record.progress)
        state = merged.encode()
        if merged is record.progress or merged == record.progress:
            written[key] = state
        else:
            # What was acked without the leader's knowing is not in what it will write next.
            written.pop(key, None)
        if before is None or before.state != state:
            fresh.append((group, key, merged.floor, state))
            stored[key] = progress.Progress(group, key, merged.floor, state)
    if fresh:
        tx.executemany(_PUT, fresh)
    for record in known:
        if record.finished:
            starts.put_finished(tx, group, record.unit, segments[record.unit].segment_id)
    claimed = []
    for claim in commit.claims:
        claims.grant(tx, group, claim_unit(group, claim.unit), claim.borrower, claim.unit_token)
        found = segments.get(claim.unit)
        here = stored.get(found.segment_id) if found else None
        claimed.append((claim.unit, decode(here) if here else Progress()))
    _put_handed(tx, group, commit, claimed, part)
    starts.forget(tx, group, commit.forget)
    return claimed


def _put_again(
    tx: Tx,
    group: str,
    records: Sequence[ProgressRecord],
    segments: Mapping[Unit, SegmentKey],
    written: dict[int, bytes],
) -> bool:
    """Store progress where nobody else has stored any since this leader last did, unread.

    False if that is not so everywhere: the rest is to be merged, what is stored here stays.
    """
    fresh: list[tuple[int, bytes, str, int, bytes]] = []
    for record in records:
        key = segments[record.unit].segment_id
        before = written.get(key)
        if before is None or record.finished:
            return False
        place = record.progress
        fresh.append((place.floor, place.encode(), group, key, before))
    if tx.executemany(_PUT_AGAIN, fresh) != len(fresh):
        return False
    for _, state, _, key, _ in fresh:
        written[key] = state
    return True


def _put_handed(
    tx: Tx, group: str, commit: Commit, claimed: list[tuple[Unit, Progress]], part: int
) -> None:
    """Remember where new owners begin; units that nobody had before have no former owner."""
    handed = [
        Handed(claim.unit, claim.unit_token, here)
        for claim, (_, here) in zip(commit.claims, claimed, strict=True)
        if claim.unit_token > 1
    ]
    if handed:
        slot = f"{commit.number % SLOTS}-{part}"
        entries.put(tx, starts.handed_bucket(group), slot, _encoder.encode(handed))


def _read(tx: Tx, group: str, ids: Sequence[int]) -> dict[int, progress.Progress]:
    found: dict[int, progress.Progress] = {}
    for begin in range(0, len(ids), 200):
        part = ids[begin : begin + 200]
        marks = ", ".join("?" * len(part))
        for segment_id, floor, state in tx.rows(
            "SELECT segment_id, floor, state FROM progress "
            f"WHERE group_name = ? AND segment_id IN ({marks})",
            (group, *part),
        ):
            found[segment_id] = progress.Progress(group, segment_id, floor, bytes(state))
    return found


_PUT = (
    "INSERT INTO progress (group_name, segment_id, floor, state) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (group_name, segment_id) DO UPDATE "
    "SET floor = excluded.floor, state = excluded.state WHERE excluded.floor >= progress.floor"
)
_PUT_AGAIN = (
    "UPDATE progress SET floor = ?, state = ? WHERE group_name = ? AND segment_id = ? AND state = ?"
)
_encoder = msgspec.msgpack.Encoder()
_handed: msgspec.msgpack.Decoder[list[Handed]] = msgspec.msgpack.Decoder(list[Handed])
