"""The judgement over the histories of a round.  Pure.

Of what was written:

- an acknowledged write is in the log: each of its events once, at the places that were told;
- any other write is there once and wholly, or not at all; nothing else is there;
- the offsets of a segment are dense, from its tail to its head;
- of a key, a write that was acknowledged before another one began stands before it; within one
  process that holds for a write that was given up, too, if it is there at all.

Of what was consumed, when nothing is left to consume:

- every event was acked by somebody who was not told that this does not count;
- no event was acked twice with both told to count, nor delivered again after such an ack, under
  its token or a newer one; no token has two owners, and no stale one counts;
- the next event of a key comes only when the one before it was answered, and counts after it;
- a transaction that was told to count has its output in all its streams; one that was told not to
  has none; and whatever happened, it is there wholly or not at all, and once per event.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from tests.torture.account import SHOWN_MAX, Finding
from tests.torture.histories.records import (
    IN,
    OUT,
    SIDE,
    Acked,
    Acking,
    Delivered,
    Hold,
    Noted,
    Record,
    Spot,
    Told,
    Trimming,
    Writing,
    Written,
)

NEVER_NS = 1 << 62
OUTPUT_STREAMS = (OUT, SIDE)


class Stored(msgspec.Struct, frozen=True):
    """An event as it was read back."""

    spot: Spot
    key: str
    name: str


class Copy(msgspec.Struct, frozen=True):
    """A stream as it was read back: its events in the order of the read, and its segments."""

    events: list[Stored]
    segments: dict[int, tuple[int, int]]
    """{number: (tail, head)}"""


class Figures(msgspec.Struct, frozen=True):
    """What a round came to."""

    events: int = 0
    writes: int = 0
    acknowledged: int = 0
    given_up: int = 0
    given_up_stored: int = 0
    deliveries: int = 0
    acks: int = 0
    acks_refused: int = 0
    transactions: int = 0
    transactions_refused: int = 0


class Write:
    """One write, with its repeats."""

    def __init__(self, process: str, record: Writing) -> None:
        self.process = process
        self.way = record.way
        self.events = record.events
        self.begun_ns = record.at_ns
        self.ended_ns = NEVER_NS
        """When its process had it off its hands."""
        self.stored_ns = NEVER_NS
        """When it was told to be stored; with an appender that comes later."""
        self.told: Told | None = None
        self.spots: list[Spot] | None = None

    def repeat(self, process: str) -> None:
        """It is sent again, and may be stored anew, as far as anybody knows."""
        if self.told != "done":
            self.process, self.ended_ns = process, NEVER_NS

    def answer(self, record: Written) -> None:
        if self.told == "done":
            return
        if self.told != "taken":
            self.ended_ns = record.at_ns
        if record.told == "done":
            self.stored_ns = record.at_ns
        self.told = record.told
        self.spots = record.spots

    def __str__(self) -> str:
        return f"{self.way} of {self.process} ({self.events[0].name}, told {self.told})"


class Delivery:
    """One delivery, and what came of it."""

    def __init__(self, process: str, record: Delivered) -> None:
        self.process = process
        self.hold = record.hold
        self.at_ns = record.at_ns
        self.asked_ns: int | None = None
        self.ended_ns: int | None = None
        self.output = ""
        self.told: Told | None = None
        self.error = ""

    @property
    def counts(self) -> bool:
        return self.told == "done"

    @property
    def may_count(self) -> bool:
        return self.asked_ns is not None and self.told != "refused"

    def __str__(self) -> str:
        way = "transaction" if self.output else "ack"
        said = "not answered" if self.asked_ns is None else f"{way}: {self.told} {self.error}"
        hold = self.hold
        return (
            f"{hold.name} to {self.process} (unit {hold.unit}, token {hold.token}, "
            f"attempt {hold.attempt}; {said})"
        )


def check(
    journals: Mapping[str, Sequence[Record]], log: Mapping[str, Copy]
) -> tuple[list[Finding], Figures]:
    """Everything that is wrong, and the sums."""
    writes = _writes(journals)
    deliveries = _deliveries(journals)
    trimmed = _trimmed(journals)
    places = _places(log, trimmed)
    findings = [
        *_check_offsets(log),
        *_check_one_place(log, trimmed),
        *_check_writes(writes, deliveries, places),
        *_check_key_order(writes, log),
        *_check_acks(deliveries),
        *_check_turns(deliveries, log[IN]),
        *_check_none_left(deliveries, log[IN]),
        *_check_outputs(deliveries, places),
    ]
    return findings, _figures(writes, deliveries, places)


def _finding(kind: str, shown: Sequence[object]) -> list[Finding]:
    if not shown:
        return []
    more = "" if len(shown) <= SHOWN_MAX else f" and {len(shown) - SHOWN_MAX} more"
    return [Finding(kind, "; ".join(str(one) for one in shown[:SHOWN_MAX]) + more)]


# --- collecting ----------------------------------------------------------------------------


def _records(journals: Mapping[str, Sequence[Record]]) -> Iterator[tuple[str, Record]]:
    """In the order of their times."""
    found = [(record.at_ns, process, record) for process, of in journals.items() for record in of]
    found.sort(key=lambda item: item[0])
    return ((process, record) for _, process, record in found)


def _writes(journals: Mapping[str, Sequence[Record]]) -> list[Write]:
    found: dict[str, Write] = {}
    for process, record in _records(journals):
        if isinstance(record, Writing):
            found.setdefault(record.call, Write(process, record)).repeat(process)
        elif isinstance(record, Written):
            found[record.call].answer(record)
    return list(found.values())


def _deliveries(journals: Mapping[str, Sequence[Record]]) -> list[Delivery]:
    found: list[Delivery] = []
    last: dict[tuple[str, Hold], Delivery] = {}
    for process, record in _records(journals):
        match record:
            case Delivered(hold=hold):
                last[process, hold] = Delivery(process, record)
                found.append(last[process, hold])
            case Acking(at_ns, hold, output):
                one = last[process, hold]
                one.asked_ns, one.output = at_ns, output
            case Acked(at_ns, hold, told, error):
                one = last[process, hold]
                one.ended_ns, one.told, one.error = at_ns, told, error
            case Writing() | Written() | Trimming() | Noted():
                pass
    return found


def _trimmed(journals: Mapping[str, Sequence[Record]]) -> dict[Spot, str]:
    return {
        spot: name
        for _, record in _records(journals)
        if isinstance(record, Trimming)
        for spot, name in record.events
    }


Places = Mapping[tuple[str, str], set[Spot]]
"""Where each (stream, name) stands or stood."""


def _places(log: Mapping[str, Copy], trimmed: Mapping[Spot, str]) -> Places:
    found: dict[tuple[str, str], set[Spot]] = defaultdict(set)
    for stream, copy in log.items():
        for event in copy.events:
            found[stream, event.name].add(event.spot)
    for spot, name in trimmed.items():
        found[spot.stream, name].add(spot)
    return found


# --- the log -------------------------------------------------------------------------------


def _check_offsets(log: Mapping[str, Copy]) -> list[Finding]:
    wrong = []
    for stream, copy in log.items():
        found: dict[int, list[int]] = {number: [] for number in copy.segments}
        for event in copy.events:
            found.setdefault(event.spot.segment, []).append(event.spot.offset)
        for segment, offsets in found.items():
            tail, head = copy.segments.get(segment, (0, 0))
            if offsets != list(range(tail, head)):
                wrong.append(
                    f"{stream}/{segment}: {len(offsets)} events, {_gaps(offsets)}, "
                    f"and not {tail} to {head}"
                )
    return _finding("offsets not dense", wrong)


def _gaps(offsets: Sequence[int]) -> str:
    for before, after in pairwise(offsets):
        if after != before + 1:
            return f"{after} after {before}"
    return f"{offsets[0]} to {offsets[-1] + 1}" if offsets else "none"


def _check_one_place(log: Mapping[str, Copy], trimmed: Mapping[Spot, str]) -> list[Finding]:
    """What was read before a trim and is still there must be the same."""
    wrong = [
        f"{event.spot}: {event.name}, and {trimmed[event.spot]} before"
        for copy in log.values()
        for event in copy.events
        if trimmed.get(event.spot, event.name) != event.name
    ]
    return _finding("changed", wrong)


def _check_writes(
    writes: Iterable[Write], deliveries: Iterable[Delivery], places: Places
) -> list[Finding]:
    missing, twice, half, elsewhere = [], [], [], []
    known = {(stream, one.output) for one in deliveries for stream in OUTPUT_STREAMS if one.output}
    for write in writes:
        known |= {(event.stream, event.name) for event in write.events}
        at = [places.get((event.stream, event.name), set()) for event in write.events]
        there = sum(map(bool, at))
        if any(len(spots) > 1 for spots in at):
            twice.append(write)
        elif there == len(at):
            if write.spots is not None and set(write.spots) != set().union(*at):
                elsewhere.append(write)
        elif write.told == "done":
            missing.append(f"{write}: {there} of {len(at)}")
        elif there:
            half.append(f"{write}: {there} of {len(at)}")
    strangers = [f"{stream}: {name}" for stream, name in places if (stream, name) not in known]
    return [
        *_finding("acknowledged and missing", missing),
        *_finding("doubled", twice),
        *_finding("half there", half),
        *_finding("elsewhere than told", elsewhere),
        *_finding("never written", strangers),
    ]


def _check_key_order(writes: Iterable[Write], log: Mapping[str, Copy]) -> list[Finding]:
    """Going through a key: nothing may come that ended before something already there began."""
    of: dict[tuple[str, str], tuple[Write, int]] = {}
    for write in writes:
        for row, event in enumerate(write.events):
            of[event.stream, event.name] = (write, row)
    wrong: list[str] = []
    for stream, copy in log.items():
        for names in _by_key(copy.events).values():
            found = [of[stream, name] for name in names if (stream, name) in of]
            wrong += _disorder(found)
    return _finding("order of a key", wrong)


def _disorder(found: Iterable[tuple[Write, int]]) -> Iterator[str]:
    latest: dict[str, Write] = {}
    rows: dict[int, int] = {}
    for write, row in found:
        for process, other in latest.items():
            ended_ns = write.ended_ns if process == write.process else write.stored_ns
            if ended_ns < other.begun_ns:
                yield f"{write} stands behind {other}, which began later"
        if row < rows.get(id(write), -1):
            yield f"{write}: row {row} behind row {rows[id(write)]}"
        rows[id(write)] = row
        if write.process not in latest or latest[write.process].begun_ns < write.begun_ns:
            latest[write.process] = write


def _by_key(events: Iterable[Stored]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for event in events:
        found[event.key].append(event.name)
    return found


# --- the group -----------------------------------------------------------------------------


def _by_name(deliveries: Iterable[Delivery]) -> dict[str, list[Delivery]]:
    found: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        found[delivery.hold.name].append(delivery)
    return found


def _check_acks(deliveries: Sequence[Delivery]) -> list[Finding]:
    twice, again = [], []
    for of_event in _by_name(deliveries).values():
        counted = [delivery for delivery in of_event if delivery.counts]
        if len(counted) > 1:
            twice.append(f"{counted[0]} and {counted[1]}")
        again += [
            f"{ack}, then {other}"
            for ack in counted[:1]
            for other in of_event
            if other.hold.token > ack.hold.token
            or (other.hold.token == ack.hold.token and other.at_ns > (ack.ended_ns or NEVER_NS))
        ]
    shared, stale = _strange_owners(deliveries)
    return [
        *_finding("acked twice", twice),
        *_finding("delivered after an ack that counts", again),
        *_finding("two owners of one token", shared),
        *_finding("a stale ack counts", stale),
    ]


def _strange_owners(deliveries: Sequence[Delivery]) -> tuple[list[str], list[str]]:
    owners: dict[tuple[str, int], str] = {}
    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
    shared, stale = [], []
    for delivery in deliveries:
        hold = delivery.hold
        owner = owners.setdefault((hold.unit, hold.token), delivery.process)
        if owner != delivery.process:
            shared.append(f"{delivery}, but the token is of {owner}")
        if not seen[hold.unit] or hold.token > seen[hold.unit][-1][1]:
            seen[hold.unit].append((delivery.at_ns, hold.token))
    for delivery in deliveries:
        if delivery.counts and delivery.asked_ns is not None:
            stale += [
                f"{delivery}, when token {token} was at work"
                for at_ns, token in seen[delivery.hold.unit]
                if token > delivery.hold.token and at_ns < delivery.asked_ns
            ][:1]
    return shared, stale


def _check_turns(deliveries: Iterable[Delivery], source: Copy) -> list[Finding]:
    by_name = _by_name(deliveries)
    early, disordered = [], []
    for names in _by_key(source.events).values():
        for before, after in pairwise(names):
            asked = [one.asked_ns for one in by_name.get(before, ()) if one.asked_ns is not None]
            first_ns = min(asked, default=NEVER_NS)
            early += [
                f"{one}, and {before} was not answered"
                for one in by_name.get(after, ())
                if one.at_ns < first_ns
            ]
        counted = [one for name in names for one in by_name.get(name, ()) if one.counts]
        disordered += [
            f"{second} counts before {first}"
            for first, second in pairwise(counted)
            if (second.asked_ns or 0) < (first.asked_ns or 0)
        ]
    return [
        *_finding("delivered before its turn", early),
        *_finding("counted out of order", disordered),
    ]


def _check_none_left(deliveries: Iterable[Delivery], source: Copy) -> list[Finding]:
    """Nothing is left to consume, so somebody's ack of every event counts."""
    by_name = _by_name(deliveries)
    never, untrue = [], []
    for event in source.events:
        of_event = by_name.get(event.name, [])
        if not of_event:
            never.append(f"{event.name} at {event.spot}")
        elif not any(delivery.may_count for delivery in of_event):
            untrue.append("; ".join(map(str, of_event)))
    return [
        *_finding("never delivered", never),
        *_finding("counts, and was told not to", untrue),
    ]


def _check_outputs(deliveries: Iterable[Delivery], places: Places) -> list[Finding]:
    half, missing, untrue = [], [], []
    twice: list[object] = []
    outputs: Counter[str] = Counter()
    for delivery in deliveries:
        if not delivery.output:
            continue
        at = [places.get((stream, delivery.output), set()) for stream in OUTPUT_STREAMS]
        there = sum(map(bool, at))
        outputs[delivery.hold.name] += bool(there)
        if 0 < there < len(at):
            half.append(f"{delivery}: in {there} of {len(at)} streams")
        if delivery.counts and not there:
            missing.append(delivery)
        if delivery.told == "refused" and there:
            untrue.append(delivery)
        if any(len(spots) > 1 for spots in at):
            twice.append(delivery)
    by_name = _by_name(deliveries)
    for name, count in outputs.items():
        acked = [one for one in by_name[name] if one.counts and not one.output]
        if count > 1 or (count and acked):
            twice.append(f"{name}: {count} outputs; {'; '.join(map(str, by_name[name]))}")
    return [
        *_finding("transaction half there", half),
        *_finding("output missing", missing),
        *_finding("committed, and was told not to be", untrue),
        *_finding("output twice", twice),
    ]


def _figures(writes: Sequence[Write], deliveries: Sequence[Delivery], places: Places) -> Figures:
    def stored(write: Write) -> bool:
        return any(places.get((event.stream, event.name)) for event in write.events)

    given_up = [write for write in writes if write.told == "given up"]
    acks = [one for one in deliveries if one.asked_ns is not None and not one.output]
    transactions = [one for one in deliveries if one.output]
    return Figures(
        events=sum(map(len, places.values())),
        writes=len(writes),
        acknowledged=sum(write.told == "done" for write in writes),
        given_up=len(given_up),
        given_up_stored=sum(map(stored, given_up)),
        deliveries=len(deliveries),
        acks=len(acks),
        acks_refused=sum(one.told == "refused" for one in acks),
        transactions=len(transactions),
        transactions_refused=sum(one.told == "refused" for one in transactions),
    )
