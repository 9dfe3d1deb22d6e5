"""The judgement: what the writers said against what the log holds.  Pure.

- an acknowledged event stands in the log once, at the place that was acknowledged;
- an append in doubt is there wholly or not at all, and once; a refused one is not there;
- of a loop through an appender, nothing is there behind what is missing;
- what an idempotent producer sent is there once, however often it was sent;
- nothing else is there, and nothing was changed on its way;
- a writer's events of a key stand in its order, along the edges from segment to segment;
- a segment's offsets run from 0 to its head, and each event lies in its segment's key range;
- the open segments tile the keys, and what follows on a sealed segment covers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from tests.torture.ledger import (
    STREAMS,
    Acked,
    Identities,
    InDoubt,
    Intent,
    Record,
    Refused,
    Spot,
    show_uid,
)
from tests.torture.order import OrderCheck

KEY_SPACE = 1 << 32
SHOWN_MAX = 5
"""How many events a finding names one by one."""

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]


class Finding(msgspec.Struct, frozen=True):
    """Something that must not be."""

    kind: str
    detail: str


class SegmentCopy(msgspec.Struct, frozen=True):
    """A segment as it was read back: one row for each event."""

    number: int
    range_lo: int
    range_hi: int
    sealed: bool
    head: int
    predecessors: tuple[int, ...]
    offsets: Ints
    hashes: Hashes
    events: Identities


class StreamCopy(msgspec.Struct, frozen=True):
    name: str
    segments: tuple[SegmentCopy, ...]


class Totals(msgspec.Struct, frozen=True):
    """How many events ended how."""

    acked: int = 0
    in_doubt_found: int = 0
    in_doubt_lost: int = 0
    refused: int = 0
    repeats: int = 0
    appends: int = 0
    segments: int = 0
    cut_connections: int = 0


class Op:
    """An append and all that was said about it."""

    __slots__ = ("acks", "doubts", "intent", "refused")

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self.acks: list[list[Spot]] = []
        self.refused = False
        self.doubts = 0

    @property
    def uids(self) -> list[range]:
        return [range(part.first, part.first + len(part.keys)) for part in self.intent.parts]


class Ledger:
    """All journals together."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.ops: dict[int, Op] = {}
        for record in records:
            match record:
                case Intent(op=op):
                    self.ops[op] = Op(record)
                case Acked(op=op, spots=spots):
                    self.ops[op].acks.append(spots)
                case Refused(op=op):
                    self.ops[op].refused = True
                case InDoubt(op=op):
                    self.ops[op].doubts += 1


class _Expected:
    """Every intended event in arrays, sorted by uid; ``op`` is an index into ``ops``."""

    def __init__(self, ledger: Ledger) -> None:
        self.ops = list(ledger.ops.values())
        columns: list[list[npt.NDArray[np.uint64]]] = [[], [], [], [], []]
        for index, op in enumerate(self.ops):
            for part in op.intent.parts:
                count = len(part.keys)
                fresh = (
                    np.arange(part.first, part.first + count, dtype=np.uint64),
                    np.full(count, part.stream, np.uint64),
                    np.array(part.keys, np.uint64),
                    np.array(part.numbers, np.uint64),
                    np.full(count, index, np.uint64),
                )
                for column, values in zip(columns, fresh, strict=True):
                    column.append(values)
        joined = [np.concatenate(c) if c else np.zeros(0, np.uint64) for c in columns]
        order = np.argsort(joined[0])
        self.uid, self.stream, self.key, self.number, self.op = (c[order] for c in joined)


class _Held:
    """Every event of the log in arrays, sorted by uid."""

    def __init__(self, copies: Sequence[StreamCopy]) -> None:
        streams, segments, offsets, events = [], [], [], []
        for copy in copies:
            for segment in copy.segments:
                count = len(segment.events)
                streams.append(np.full(count, STREAMS.index(copy.name), np.uint64))
                segments.append(np.full(count, segment.number, np.int64))
                offsets.append(segment.offsets)
                events.append(segment.events)
        joined = np.concatenate(events)
        order = np.argsort(joined["uid"], kind="stable")
        self.events = joined[order]
        self.uid = self.events["uid"]
        self.stream = np.concatenate(streams)[order]
        self.segment = np.concatenate(segments)[order]
        self.offset = np.concatenate(offsets)[order]

    def where(self, row: int) -> str:
        stream = STREAMS[int(self.stream[row])]
        return f"{stream}/{self.segment[row]}/{self.offset[row]}"


def account(ledger: Ledger, copies: Sequence[StreamCopy]) -> tuple[list[Finding], Totals]:
    """Everything that is wrong, and the sums."""
    findings = [finding for copy in copies for finding in _check_stream(copy)]
    expected, held = _Expected(ledger), _Held(copies)
    findings += _check_duplicates(held)
    findings += _check_strangers(expected, held)
    there = np.isin(expected.uid, held.uid)
    findings += _check_ops(expected, there)
    findings += _check_loops(ledger, held)
    findings += _check_places(ledger, copies)
    return findings, _totals(ledger, expected, there, copies)


def _finding(kind: str, shown: Sequence[str], count: int) -> list[Finding]:
    if not count:
        return []
    more = "" if count <= len(shown) else f" and {count - len(shown)} more"
    return [Finding(kind, "; ".join(shown) + more)]


# --- events --------------------------------------------------------------------------------


def _check_duplicates(held: _Held) -> list[Finding]:
    twice = np.flatnonzero(held.uid[1:] == held.uid[:-1])
    shown = [
        f"{show_uid(int(held.uid[row]))} is at {held.where(row)} and at {held.where(row + 1)}"
        for row in twice[:SHOWN_MAX].tolist()
    ]
    return _finding("duplicated", shown, len(twice))


def _check_strangers(expected: _Expected, held: _Held) -> list[Finding]:
    """Events that nobody sent, or that are not as they were sent."""
    known = np.isin(held.uid, expected.uid)
    strange = np.flatnonzero(~known)
    shown = [f"{show_uid(int(held.uid[r]))} at {held.where(r)}" for r in strange[:SHOWN_MAX]]
    findings = _finding("never sent", shown, len(strange))
    rows = np.flatnonzero(known)
    at = np.searchsorted(expected.uid, held.uid[rows])
    wrong = rows[
        (held.stream[rows] != expected.stream[at])
        | (held.events["key"][rows] != expected.key[at])
        | (held.events["number"][rows] != expected.number[at])
    ]
    shown = [f"{show_uid(int(held.uid[r]))} at {held.where(r)}" for r in wrong[:SHOWN_MAX]]
    return findings + _finding("changed on its way", shown, len(wrong))


def _check_ops(expected: _Expected, there: npt.NDArray[np.bool_]) -> list[Finding]:
    sizes = np.bincount(expected.op.astype(np.int64), minlength=len(expected.ops))
    found = np.bincount(expected.op[there].astype(np.int64), minlength=len(expected.ops))
    wrong: dict[str, list[str]] = {}

    def note(kind: str, op: Op, count: int, size: int) -> None:
        wrong.setdefault(kind, []).append(
            f"{op.intent.kind} of {show_uid(op.intent.op)}: {count} of {size} events are there"
        )

    for op, count, size in zip(expected.ops, found.tolist(), sizes.tolist(), strict=True):
        if op.acks and count < size:
            note("lost", op, count, size)
        elif op.refused and count:
            note("refused, yet there", op, count, size)
        elif 0 < count < size:
            note("torn", op, count, size)
        elif not op.acks and op.intent.producer is not None:
            note("never resolved", op, count, size)
    return [
        finding
        for kind, shown in wrong.items()
        for finding in _finding(kind, shown[:SHOWN_MAX], len(shown))
    ]


def _check_loops(ledger: Ledger, held: _Held) -> list[Finding]:
    """What an appender stored is what it was given first."""
    ops = [op for op in ledger.ops.values() if op.intent.loop is not None]
    there = np.isin(np.array([op.intent.op for op in ops], np.uint64), held.uid).tolist()
    missing: dict[int | None, Op] = {}
    wrong = []
    for op, found in sorted(zip(ops, there, strict=True), key=lambda each: each[0].intent.op):
        before = missing.get(op.intent.loop)
        if not found:
            missing.setdefault(op.intent.loop, op)
        elif before is not None:
            wrong.append(f"{show_uid(op.intent.op)} without {show_uid(before.intent.op)}")
    return _finding("skipped in a loop", wrong[:SHOWN_MAX], len(wrong))


def _check_places(ledger: Ledger, copies: Sequence[StreamCopy]) -> list[Finding]:
    """An acknowledgement names the places where the events are, and a repeat names the same."""
    uids = {(c.name, s.number): s.events["uid"] for c in copies for s in c.segments}
    wrong, unlike = [], []
    for op in ledger.ops.values():
        if any(spots != op.acks[0] for spots in op.acks[1:]):
            unlike.append(f"{op.intent.kind} of {show_uid(op.intent.op)}: {op.acks}")
        if not op.acks or op.intent.loop is not None:
            continue
        named = sorted(
            uid
            for spot in op.acks[0]
            for uid in uids.get((spot.stream, spot.segment), np.zeros(0, np.uint64))[
                spot.start : spot.start + spot.count
            ].tolist()
        )
        if named != [uid for part in op.uids for uid in part]:
            wrong.append(f"{op.intent.kind} of {show_uid(op.intent.op)}: {op.acks[0]}")
    return _finding("not where acknowledged", wrong[:SHOWN_MAX], len(wrong)) + _finding(
        "repeat answered differently", unlike[:SHOWN_MAX], len(unlike)
    )


def _totals(
    ledger: Ledger,
    expected: _Expected,
    there: npt.NDArray[np.bool_],
    copies: Sequence[StreamCopy],
) -> Totals:
    acked = np.array([bool(op.acks) for op in expected.ops], bool)
    refused = np.array([op.refused for op in expected.ops], bool)
    index = expected.op.astype(np.int64)
    doubt = ~acked[index] & ~refused[index] if len(expected.ops) else np.zeros(0, bool)
    ops = ledger.ops.values()
    return Totals(
        acked=int(acked[index].sum()) if len(expected.ops) else 0,
        in_doubt_found=int((doubt & there).sum()),
        in_doubt_lost=int((doubt & ~there).sum()),
        refused=int(refused[index].sum()) if len(expected.ops) else 0,
        repeats=sum(max(0, len(op.acks) - 1) for op in ops),
        appends=len(ledger.ops),
        segments=sum(len(copy.segments) for copy in copies),
        cut_connections=sum(op.doubts for op in ops),
    )


# --- segments ------------------------------------------------------------------------------


def _check_stream(copy: StreamCopy) -> list[Finding]:
    findings = []
    for segment in copy.segments:
        where = f"{copy.name}/{segment.number}"
        if not np.array_equal(segment.offsets, np.arange(segment.head)):
            findings.append(
                Finding("offsets", f"{where}: {len(segment.offsets)} events, head {segment.head}")
            )
        hashes = segment.hashes.astype(np.int64)
        outside = np.flatnonzero((hashes < segment.range_lo) | (hashes >= segment.range_hi))
        if len(outside):
            findings.append(
                Finding("wrong segment", f"{where}: offset {segment.offsets[outside[0]]}")
            )
    return findings + _check_tiling(copy) + _check_order(copy)


def _check_tiling(copy: StreamCopy) -> list[Finding]:
    numbers = {segment.number: segment for segment in copy.segments}
    successors: dict[int, list[SegmentCopy]] = {number: [] for number in numbers}
    for segment in copy.segments:
        for predecessor in segment.predecessors:
            successors[predecessor].append(segment)
    findings = []
    if not _tiles((s for s in copy.segments if not s.sealed), 0, KEY_SPACE):
        findings.append(Finding("tiling", f"{copy.name}: the open segments do not tile the keys"))
    for segment in copy.segments:
        after = successors[segment.number]
        if not segment.sealed and after:
            findings.append(
                Finding("tiling", f"{copy.name}/{segment.number} is open, yet followed")
            )
        if segment.sealed and not _tiles(after, segment.range_lo, segment.range_hi):
            findings.append(Finding("tiling", f"{copy.name}/{segment.number} is not covered"))
    return findings


def _tiles(segments: Iterable[SegmentCopy], lo: int, hi: int) -> bool:
    """Whether the segments cover [lo, hi) without overlap; they may reach beyond it."""
    ranges = sorted((segment.range_lo, segment.range_hi) for segment in segments)
    if not ranges or ranges[0][0] > lo or ranges[-1][1] < hi:
        return False
    return all(before[1] == after[0] for before, after in pairwise(ranges))


def _check_order(copy: StreamCopy) -> list[Finding]:
    check = OrderCheck()
    for segment in walk(copy):
        wrong = check.feed(segment.events)
        if wrong is not None:
            text = f"{show_uid(wrong[0])} stands after {show_uid(wrong[1])} of the same key"
            return [Finding("reordered", f"{copy.name}, up to segment {segment.number}: {text}")]
    return []


def walk(copy: StreamCopy) -> list[SegmentCopy]:
    """The segments, each after all of its predecessors."""
    waiting: Mapping[int, SegmentCopy] = {segment.number: segment for segment in copy.segments}
    left = Counter({segment.number: len(segment.predecessors) for segment in copy.segments})
    followers: dict[int, list[int]] = {}
    for segment in copy.segments:
        for predecessor in segment.predecessors:
            followers.setdefault(predecessor, []).append(segment.number)
    ready = [number for number in waiting if not left[number]]
    found = []
    while ready:
        number = ready.pop()
        found.append(waiting[number])
        for follower in followers.get(number, ()):
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    if len(found) != len(copy.segments):
        raise ValueError(f"{copy.name}: the segments' edges form a ring")
    return found
