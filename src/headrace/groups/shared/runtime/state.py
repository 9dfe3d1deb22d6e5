"""A leader's durable state in the catalog: loading it, and storing a commit.

Per unit: the claim (owner and token), the progress, and an entry if it is finished.  Every write
checks the token of the group's lease first, so a leader that was replaced cannot change a thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from headrace.catalog import Query, Tx, claims, entries, leases, progress
from headrace.catalog.records import Records
from headrace.groups.progress import Progress, store
from headrace.groups.progress.store import Joining, SeekPlace, load_all, write_of
from headrace.groups.shared import ended_units, starts
from headrace.groups.shared.core.messages import Unit, unit_of
from headrace.groups.shared.core.records import (
    ClaimRecord,
    Commit,
    ProgressRecord,
    StoredGroup,
    StoredUnit,
)
from headrace.groups.shared.keys import finished_bucket, leader_lease
from headrace.groups.shared.keys import unit_of_claim as unit_of_claim

LOCKS_MAX = 500
"""Units in one transaction at most; PostgreSQL holds a lock for each of them."""


lease_name = leader_lease

SLOTS = 32
"""The ring of recent hand-overs: how many commits with claims are remembered."""


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """A unit that changed hands, and how far the group had come in it."""

    unit: Unit
    unit_token: int
    progress: Progress


class SegmentKey(msgspec.Struct, frozen=True):
    """The ids of a unit in the log."""

    stream_id: int
    segment_id: int


def claim_unit(group: str, unit: Unit) -> str:
    """A unit as its claim names it: one consumer may have the same segment in two groups."""
    return f"{unit}@{group}"


def decode_handed(group: str, data: bytes | None) -> list[Handed]:
    """The hand-overs of one commit; none, with a warning, if they cannot be read."""
    return _handed.decode_or(group, data, [])


def asking(group: str) -> list[Query]:
    """The queries of :func:`load`."""
    units = (claims.asking_group(group), claims.asking_floor(group), *progress.asking(group))
    return [*units, *ended_units.asking_finished(group), *starts.asking()]


def load(tx: Tx, group: str, filter: str) -> StoredGroup:
    """Everything that is stored about the units of a group that exist, and of others the tokens."""
    tx.foresee(*asking(group))
    tokens = {unit_of_claim(claim.unit): claim.token for claim in claims.of_group(tx, group)}
    rows = load_all(tx, group)
    over = ended_units.finished(tx, group)
    floor = claims.floor(tx, group)
    stored = []
    for stream in starts.matching(tx, filter):
        for segment in stream.segments:
            unit = unit_of(stream.name, segment.number)
            token = tokens.pop(unit, None)
            found = rows.get(segment.id)
            if found is None and token is None:
                continue
            at = found or Progress(segment.tail)
            stored.append(StoredUnit(unit, token or floor, at, over.get(unit) == segment.id))
    return StoredGroup(stored, max([floor, *tokens.values()]))


def is_long(commit: Commit, units_max: int = LOCKS_MAX) -> bool:
    """Whether a commit has to be stored in parts."""
    return len(commit.progress) + len(commit.claims) + len(commit.forget) > units_max


def parts(commit: Commit, units_max: int = LOCKS_MAX) -> Iterator[Commit]:
    """A commit in parts that are stored one after the other; each may be stored again."""
    if not is_long(commit, units_max):
        yield commit
        return
    records = iter(
        (*commit.progress, *commit.claims, *commit.forget)  # in the order of application
    )
    while part := tuple(islice(records, units_max)):
        yield msgspec.structs.replace(
            commit,
            progress=tuple(r for r in part if isinstance(r, ProgressRecord)),
            claims=tuple(r for r in part if isinstance(r, ClaimRecord)),
            forget=tuple(r for r in part if isinstance(r, str)),
        )


def locks(group: str, commit: Commit) -> tuple[str, ...]:
    """The locks for :func:`run_commit`."""
    units = {r.unit for r in commit.progress} | {r.unit for r in commit.claims}
    names = [claims.lock(group, claim_unit(group, unit)) for unit in units]
    if commit.forget or any(record.finished for record in commit.progress):
        names.append(entries.lock(finished_bucket(group)))
    if commit.claims:
        names.append(entries.lock(ended_units.handed_bucket(group)))
    return (leases.lock(lease_name(group)), *names)


def run_commit(
    tx: Tx,
    group: str,
    commit: Commit,
    segments: Mapping[Unit, SegmentKey],
    part: int = 0,
    joining: Joining | None = None,
) -> list[tuple[Unit, Progress]]:
    """Store a commit; returns the merged progress of each unit that it claims.

    ``joining`` remembers what this leader wrote last; one for as long as it leads.

    Raises ``LeaseLost`` if somebody else leads, and ``Fenced`` if a claim's token is not new.
    """
    if commit.claims:
        units = [claim_unit(group, c.unit) for c in commit.claims]
        ids = [segments[c.unit].segment_id for c in commit.claims if c.unit in segments]
        tx.foresee(
            *(leases.asking(lease_name(group)), *claims.asking_hold(tx, group, units)),
            claims.asking_floor(group),
            *progress.asking(group, ids),
        )
    leases.check(tx, lease_name(group), commit.token)
    known = [record for record in commit.progress if record.unit in segments]
    writes = [
        write_of(group, segments[record.unit].segment_id, commit.token, record.progress)
        for record in known
    ]
    new = set((joining or Joining()).put(tx, writes))
    keys = [segments[record.unit] for record in known] if new else []
    for stream_id in {key.stream_id for key in keys if key.segment_id in new}:
        # The streams that were there when the group was made are subscribed, and have rows.
        progress.subscribe(tx, stream_id, group)
    for record in known:
        if record.finished:
            ended_units.put_finished(tx, group, record.unit, segments[record.unit].segment_id)
    claimed = _claim(tx, group, commit, segments) if commit.claims else []
    _put_handed(tx, group, commit, claimed, part)
    ended_units.forget(tx, group, commit.forget)
    return claimed


def _claim(
    tx: Tx, group: str, commit: Commit, segments: Mapping[Unit, SegmentKey]
) -> list[tuple[Unit, Progress]]:
    """Store who owns units now; returns how far the group has come in each."""
    claims.grant(
        tx,
        group,
        [(claim_unit(group, c.unit), c.borrower, c.unit_token) for c in commit.claims],
    )
    ids = {c.unit: segments[c.unit].segment_id for c in commit.claims if c.unit in segments}
    here = load_all(tx, group, list(ids.values()))
    return [(c.unit, here.get(ids.get(c.unit, -1), Progress())) for c in commit.claims]


def seek(tx: Tx, group: str, places: Mapping[Unit, tuple[int, Progress]]) -> None:
    """Put a group, or a private subscription, where it is told to: {unit: (segment, place)}.

    The leader loses its lease: what it knows is from before.  Units that were finished are not
    any more; those that follow from them wait for them again.  Holds :func:`seek_locks`.
    """
    _hand_over_to_nobody(tx, group, places)
    leases.fence(tx, lease_name(group))
    ended_units.forget(tx, group, places.keys() & ended_units.finished(tx, group).keys())
    named = [SeekPlace(claim_unit(group, unit), *place) for unit, place in places.items()]
    store.seek(tx, group, named)


def seek_locks(group: str, units: Iterable[Unit]) -> tuple[str, ...]:
    """The locks for :func:`seek`."""
    names = store.seek_locks(group, [claim_unit(group, unit) for unit in units])
    finished = entries.lock(finished_bucket(group))
    handed = entries.lock(ended_units.handed_bucket(group))
    return (leases.lock(lease_name(group)), finished, handed, *names)


def _hand_over_to_nobody(tx: Tx, group: str, places: Mapping[Unit, tuple[int, Progress]]) -> None:
    """Remember how far the group was before a seek, under a new token of each unit.

    A report in doubt is judged by the progress at the next hand-over.  A seek is one: by the new
    places, what it skips would pass for acked.
    """
    owned = {
        unit_of_claim(claim.unit): claim
        for claim in claims.of_group(tx, group)
        if claim.owner is not None and unit_of_claim(claim.unit) in places
    }
    if not owned:
        return
    ids = {unit: places[unit][0] for unit in owned}
    here = load_all(tx, group, list(ids.values()))
    claims.raise_tokens(tx, group, [claim.unit for claim in owned.values()])
    handed = [
        Handed(unit, claim.token + 1, here.get(ids[unit], Progress()).whole())
        for unit, claim in owned.items()
    ]
    slot = f"seek-{leases.last(tx, lease_name(group))[1] % SLOTS}"
    for part, begin in enumerate(range(0, len(handed), LOCKS_MAX)):
        some = handed[begin : begin + LOCKS_MAX]
        key = f"{slot}-{part}"
        entries.put(tx, ended_units.handed_bucket(group), key, _handed.encode(group, some))


def _put_handed(
    tx: Tx, group: str, commit: Commit, claimed: list[tuple[Unit, Progress]], part: int
) -> None:
    """Remember where new owners begin; units that nobody had before have no former owner."""
    handed = [
        Handed(claim.unit, claim.unit_token, here.whole())
        for claim, (_, here) in zip(commit.claims, claimed, strict=True)
        if claim.unit_token > 1
    ]
    if handed:
        slot = f"{commit.number % SLOTS}-{part}"
        entries.store(tx, ended_units.handed_bucket(group), slot, _handed.encode(group, handed))


_handed = Records(list[Handed], "hand-overs of group", json=False)
