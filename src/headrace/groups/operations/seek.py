"""Seek: put a group of any kind somewhere else in what it reads, back or forward.

Theory of operation
-------------------
A time is looked up in the log first, which may take a while; all else happens in one transaction.
It finds where the group is, decides where each reader goes, takes the units from their owners and
writes the new places (``groups/progress/store.py``), and records it.  Acks that were given before
are refused after it.  Running members hear of it, take their units up again, and go on.

*Those that follow wait again.*  Where a segment that was sealed goes back, its successors are put
back to their beginning, unless they are given a place of their own, so that keys stay in order
(``log/order.py``).

*Elastic groups* have two readers.  A place is one in the stream of the group: the partition job
goes there, and what is still in the work queue is passed over, since all of it lies before that
place or comes again from it.  A round of the job that was planned before does not count.

*Reader groups* are reset to the cut that the places make (``seek_readers.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from headrace.catalog import Tx, markers, reader_groups, replicas
from headrace.errors import (
    GroupMadeAnewError,
    HeadraceError,
    InvalidPositionError,
)
from headrace.groups import decisions, homes
from headrace.groups.decisions import Decision, What, ranges
from headrace.groups.lag import is_exact
from headrace.groups.operations import targets
from headrace.groups.operations.seek_places import (
    To,
    check_place,
    check_units,
    chosen_segments,
    described,
    is_sought,
    look_up,
    wanted_offsets,
)
from headrace.groups.operations.targets import Spot, Target
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import units as partitioned
from headrace.groups.partitioned.runtime.units import consumed_lock
from headrace.groups.progress import Progress
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.shared.runtime import state
from headrace.log.log import Log

ATTEMPTS_MAX = 10


class SoughtUnit(msgspec.Struct, frozen=True, kw_only=True):
    """One unit that was put elsewhere."""

    unit: str
    member: str = ""
    """Whose share of it, where members read shares of every segment."""
    from_offset: int
    to_offset: int
    again_events: int
    """Acked events that come again."""
    skipped_events: int
    """Events that were not acked, and do not come any more."""


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """What a seek did, or with ``dry_run`` what it would do."""

    group: str
    kind: str
    to: str
    dry_run: bool
    again_events: int
    skipped_events: int
    exact: bool
    """False: the number is an upper bound; a filter may exclude some, or a queue hold some."""
    units: tuple[SoughtUnit, ...]


class _Move(msgspec.Struct, frozen=True):
    """A reader goes to an offset of a segment."""

    spot: Spot
    offset: int


class _Unlocked(HeadraceError):
    """Internal: segments appeared since the locks were chosen; ask again."""


def seek(
    log: Log,
    name: str,
    to: To,
    *,
    units: Collection[str | int] | None = None,
    dry_run: bool = False,
) -> Sought:
    """Put a group at a place: in all its units, or in some."""
    check_place(to)
    for _ in range(ATTEMPTS_MAX):
        target, here = log.catalog.read(lambda tx: _look(tx, name), snapshot=True)
        wanted = look_up(log, target, here, to)
        if dry_run:
            return log.catalog.read(
                lambda tx, target=target, wanted=wanted: _plan(  # type: ignore[misc]
                    tx, targets.find(tx, name), target, wanted, to, units
                )[1],
                snapshot=True,
            )
        ids = {spot.segment.id for spot in here}
        try:
            return log.catalog.write(
                lambda tx, target=target, wanted=wanted, ids=ids: _run(  # type: ignore[misc]
                    tx, name, target, wanted, to, units, ids
                ),
                locks=_locks(target, here),
            )
        except _Unlocked:
            continue
    raise InvalidPositionError(f"group {name!r}: its streams are scaled again and again; try later")


def _look(tx: Tx, name: str) -> tuple[Target, list[Spot]]:
    target = targets.find(tx, name)
    return target, targets.spots(tx, target)


# --- the one transaction -------------------------------------------------------------------------


def _plan(
    tx: Tx,
    target: Target,
    seen: Target,
    resolved: Mapping[str, Mapping[int, int]],
    to: To,
    asked: Collection[str | int] | None,
) -> tuple[list[_Move], Sought]:
    """Where everybody goes, and what that means."""
    if target.incarnation != seen.incarnation:
        raise GroupMadeAnewError(target.name)
    here = targets.spots(tx, target)
    if isinstance(to, Mapping):
        check_units(target, here, to)
    if asked is not None:
        check_units(target, here, asked)
    moves = []
    goals: dict[str, dict[int, int]] = {}
    for spot in here:
        if is_sought(target, spot.reader):
            stream = spot.stream
            if stream.name not in goals:
                chosen = chosen_segments(stream, asked)
                goals[stream.name] = wanted_offsets(target, stream, resolved, to, chosen)
            goal = goals[stream.name].get(spot.segment.number)
            if goal is not None:
                moves.append(_Move(spot, min(goal, spot.segment.head)))
        else:
            moves.append(_Move(spot, spot.segment.head))  # the work queue is passed over
    told = [_told(tx, move) for move in moves]
    _check_whole(target, here, moves, told)
    again, skipped = _sums(target, moves, told)
    exact = target.kind != "elastic" and all(
        is_exact([target.filter], spot.stream) and not spot.reader.member for spot in here
    )
    return moves, Sought(
        group=target.name,
        kind=target.kind,
        to=described(to),
        dry_run=True,
        again_events=again,
        skipped_events=skipped,
        exact=exact or again == skipped == 0,
        units=tuple(told),
    )


def _check_whole(
    target: Target, here: Sequence[Spot], moves: list[_Move], told: list[SoughtUnit]
) -> None:
    """What waits in a work queue came from every segment: it can be passed over for all alone."""
    if target.kind != "elastic":
        return
    pairs = list(zip(moves, told, strict=True))
    queued = sum(unit.skipped_events for move, unit in pairs if not move.spot.reader.fills)
    given = {move.spot.segment.number for move in moves if move.spot.reader.fills}
    missing = [
        str(spot.segment.number)
        for spot in here
        if spot.reader.fills and spot.segment.number not in given and spot.segment.head
    ]
    if queued and missing:
        raise InvalidPositionError(
            f"group {target.name}: its work queue still holds {queued:,} events of all segments; "
            f"give a place for each ({', '.join(missing[:16])} are missing), or wait until it is "
            "empty"
        )


def _told(tx: Tx, move: _Move) -> SoughtUnit:
    segment, acked = move.spot.segment, move.spot.progress.acked()
    missing = [(lo, min(hi, move.offset)) for lo, hi in acked.missing(segment.head)]
    late = [(max(lo, move.offset), hi) for lo, hi in acked.missing(segment.head)]
    after = markers.events_in(tx, segment, [(move.offset, segment.head)])
    return SoughtUnit(
        unit=f"{move.spot.stream.name}/{segment.number}",
        member=move.spot.reader.member,
        from_offset=max(acked.floor, segment.tail),
        to_offset=move.offset,
        again_events=after - markers.events_in(tx, segment, late),
        skipped_events=markers.events_in(tx, segment, missing),
    )


def _sums(target: Target, moves: list[_Move], told: list[SoughtUnit]) -> tuple[int, int]:
    """How many events come again, and how many are skipped."""
    if target.kind != "elastic":
        shares = {unit.member for unit in told}
        # Shares read the same events, each its own part: the most that one of them says.
        return (
            max((sum(u.again_events for u in told if u.member == m) for m in shares), default=0),
            max((sum(u.skipped_events for u in told if u.member == m) for m in shares), default=0),
        )
    jobs = [unit for move, unit in zip(moves, told, strict=True) if move.spot.reader.fills]
    queued = sum(
        unit.skipped_events
        for move, unit in zip(moves, told, strict=True)
        if not move.spot.reader.fills
    )
    again = sum(unit.again_events for unit in jobs)
    # What waits in the queue comes from the source again, as far as that goes back.
    return max(0, again - queued), sum(u.skipped_events for u in jobs) + max(0, queued - again)


def _run(
    tx: Tx,
    name: str,
    seen: Target,
    resolved: Mapping[str, Mapping[int, int]],
    to: To,
    asked: Collection[str | int] | None,
    locked: Collection[int],
) -> Sought:
    from headrace.groups.operations import seek_readers

    target = targets.find(tx, name)
    if target.reading is not None:
        seek_readers.hold(tx, target.reading)
    moves, sought = _plan(tx, target, seen, resolved, to, asked)
    if any(move.spot.segment.id not in locked for move in moves):
        raise _Unlocked("the stream was scaled meanwhile")
    done = msgspec.structs.replace(sought, dry_run=False)
    if target.reading is not None:
        goals = {
            SegmentId(move.spot.stream.name, move.spot.segment.number): move.offset
            for move in moves
        }
        here = targets.spots(tx, target)
        seek_readers.carry_out(tx, target.reading, here, goals, _decision(done))
        return done
    _carry_out(tx, target, moves)
    decisions.record(tx, done.group, [_decision(done)])
    return done


def _carry_out(tx: Tx, target: Target, moves: Sequence[_Move]) -> None:
    """Put everybody where they go; in a replicated elastic group, what is acked as well."""
    replicated = _replicated(tx, target)
    by_reader: dict[str, list[_Move]] = {}
    for move in moves:
        by_reader.setdefault(move.spot.reader.reader, []).append(move)
    for reader, own in by_reader.items():
        if target.partitioned is not None:
            places = {m.spot.segment.number: (m.spot.segment.id, Progress(m.offset)) for m in own}
            partitioned.seek(tx, target.partitioned, reader, places)
            if replicated is not None and own[0].spot.reader.fills:
                partitioned.seek(tx, replicated, replicated.consumed, places)
        else:
            state.seek(
                tx,
                reader,
                {
                    f"{m.spot.stream.name}/{m.spot.segment.number}": (
                        m.spot.segment.id,
                        Progress(m.offset),
                    )
                    for m in own
                },
            )


def _replicated(tx: Tx, target: Target) -> GroupName | None:
    """A replicated elastic group, after its queue was emptied: then it goes on from the source."""
    name = target.partitioned
    if name is None or target.kind != "elastic" or homes.replicated(tx, name.key) is None:
        return None
    from headrace.regions.runtime import queues

    queues.empty(tx, name)
    return name


def _locks(target: Target, here: Sequence[Spot]) -> list[str]:
    names = decisions.locks(target.name)
    if target.reading is not None:
        return [reader_groups.lock(target.reading.group), *names]
    by_reader: dict[str, list[Spot]] = {}
    for spot in here:
        by_reader.setdefault(spot.reader.reader, []).append(spot)
    for reader, own in by_reader.items():
        if target.partitioned is not None:
            numbers = [spot.segment.number for spot in own]
            names = [*names, *partitioned.seek_locks(target.partitioned, reader, numbers)]
            if own[0].reader.fills:
                names += [consumed_lock(target.partitioned.consumed), replicas.LOCK]
        else:
            spelt = [f"{spot.stream.name}/{spot.segment.number}" for spot in own]
            names = [*names, *state.seek_locks(reader, spelt)]
    return list(dict.fromkeys(names))


def _decision(done: Sought) -> Decision:
    most = "" if done.exact else "up to "
    return Decision(
        what=What.SOUGHT,
        reason=f"put to {done.to} by an administrator: {most}{done.again_events:,} events "
        f"come again, {most}{done.skipped_events:,} are skipped; whoever owned the units "
        "takes them up anew",
        units=ranges(sorted({unit.unit for unit in done.units})),
    )
