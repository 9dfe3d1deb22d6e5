"""The judgement over what feeder and workers saw.  Pure.

For every group by itself:

- every published event was acked: an ack of it was confirmed, or was under way when its process
  was killed; an ack that was fenced does not count;
- once an ack was confirmed, the event is never delivered again under that token or a newer one,
  and no second ack of it is confirmed;
- a token belongs to one instance, and an instance that asks for an ack after a newer token was
  seen at work on the unit is refused: no unit has two owners;
- an event is delivered only when the one before it of its key was acked before, as far as its
  owner can know; the deliveries that count are in the order of the key's numbers;
- output that was published in one transaction with an ack is there once if the ack counted, and
  not at all if it was fenced.

A frozen instance may have events in its hands when it wakes.  Those are *stale* deliveries: they
are under an older token than one that acked them, and nothing that comes of them may count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from tests.torture.account import SHOWN_MAX, Finding
from tests.torture.groups.journal import (
    Acking,
    Delivered,
    Event,
    Hold,
    Nacked,
    Outcome,
    Published,
    Record,
    Settled,
)


class Totals(msgspec.Struct, frozen=True):
    """How it went, over all groups."""

    events: int = 0
    deliveries: int = 0
    acked: int = 0
    """Acks that were confirmed."""
    died_with_acks: int = 0
    """Acks without an answer."""
    fenced: int = 0
    nacked: int = 0
    stale_deliveries: int = 0
    tokens: int = 0
    outputs: int = 0


class Delivery:
    """A delivery and what came of it; ``order`` is its place in its process's journal."""

    __slots__ = ("acking_ns", "at_ns", "hold", "instance", "nacked", "outcome", "settled_ns", "way")

    def __init__(self, instance: str, record: Delivered) -> None:
        self.instance = instance
        self.hold = record.hold
        self.at_ns = record.at_ns
        self.acking_ns: int | None = None
        self.settled_ns: int | None = None
        self.outcome: Outcome | None = None
        self.way = ""
        self.nacked = False

    @property
    def confirmed(self) -> bool:
        return self.outcome == "acked"

    @property
    def may_count(self) -> bool:
        """The ack was confirmed, or nobody can say."""
        return self.acking_ns is not None and self.outcome != "fenced"

    def __str__(self) -> str:
        event, hold = self.hold.event, self.hold
        said = self.outcome or ("ack under way" if self.acking_ns else "no ack")
        return (
            f"{hold.group}: key {event.key} number {event.number} to {self.instance} "
            f"(unit {hold.unit}, token {hold.token}, attempt {hold.attempt}: {said})"
        )


def judge(
    published: Iterable[Event],
    journals: Mapping[str, Sequence[Record]],
    groups: Sequence[str],
    outputs: Mapping[str, Counter[Event]] | None = None,
) -> tuple[list[Finding], Totals]:
    """Everything that is wrong, and the sums.

    ``journals`` by instance; ``outputs`` by group, as they were read back from its output stream.
    """
    events = set(published)
    deliveries, findings = _collect(journals)
    totals = Totals(events=len(events) * len(groups))
    for group in groups:
        mine = [delivery for delivery in deliveries if delivery.hold.group == group]
        by_event: dict[Event, list[Delivery]] = defaultdict(list)
        for delivery in mine:
            by_event[delivery.hold.event].append(delivery)
        findings += _check_none_lost(group, events, by_event)
        findings += _check_acked_once(by_event)
        findings += _check_owners(mine)
        findings += _check_key_order(by_event)
        made = (outputs or {}).get(group, Counter())
        if outputs is not None:
            findings += _check_outputs(by_event, made)
        totals = _add(totals, mine, by_event, made)
    return findings, totals


def _collect(journals: Mapping[str, Sequence[Record]]) -> tuple[list[Delivery], list[Finding]]:
    """Deliveries in the order of their times."""
    found: list[Delivery] = []
    strange: list[str] = []
    for instance, records in journals.items():
        open_holds: dict[Hold, Delivery] = {}
        for record in records:
            match record:
                case Delivered(hold=hold):
                    open_holds[hold] = delivery = Delivery(instance, record)
                    found.append(delivery)
                case Acking(at_ns, hold, way):
                    open_holds[hold].acking_ns, open_holds[hold].way = at_ns, way
                case Settled(at_ns, hold, outcome):
                    open_holds[hold].settled_ns, open_holds[hold].outcome = at_ns, outcome
                case Nacked(hold=hold):
                    open_holds[hold].nacked = True
                case Published():
                    strange.append(f"{instance} published")
    found.sort(key=lambda delivery: delivery.at_ns)
    return found, _finding("strange journal", strange)


def _finding(kind: str, shown: Sequence[object]) -> list[Finding]:
    if not shown:
        return []
    more = "" if len(shown) <= SHOWN_MAX else f" and {len(shown) - SHOWN_MAX} more"
    return [Finding(kind, "; ".join(str(one) for one in shown[:SHOWN_MAX]) + more)]


# --- events --------------------------------------------------------------------------------


def _check_none_lost(
    group: str, events: set[Event], by_event: Mapping[Event, list[Delivery]]
) -> list[Finding]:
    never, unacked = [], []
    for event in sorted(events, key=lambda event: (event.key, event.number)):
        deliveries = by_event.get(event, [])
        if not deliveries:
            never.append(f"{group}: key {event.key} number {event.number}")
        elif not any(delivery.may_count for delivery in deliveries):
            unacked.append(deliveries[-1])
    strangers = [by_event[event][0] for event in by_event if event not in events]
    return [
        *_finding("never delivered", never),
        *_finding("delivered, never acked", unacked),
        *_finding("never published", strangers),
    ]


def _check_acked_once(by_event: Mapping[Event, list[Delivery]]) -> list[Finding]:
    again, twice = [], []
    for deliveries in by_event.values():
        confirmed = [delivery for delivery in deliveries if delivery.confirmed]
        if len(confirmed) > 1:
            twice.append(f"{confirmed[0]} and {confirmed[1]}")
        for ack in confirmed[:1]:
            for other in deliveries:
                newer = other.hold.token > ack.hold.token
                later = (
                    other is not ack
                    and other.hold.token == ack.hold.token
                    and ack.settled_ns is not None
                    and other.at_ns > ack.settled_ns
                )
                if newer or later:
                    again.append(f"{ack} and then {other}")
    return [
        *_finding("delivered after a confirmed ack", again),
        *_finding("acked twice", twice),
    ]


def _check_owners(deliveries: Sequence[Delivery]) -> list[Finding]:
    """One instance for each token, and no ack under a token that is known to be stale."""
    owners: dict[tuple[str, int], str] = {}
    shared, stale = [], []
    newest: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for delivery in deliveries:
        unit, token = delivery.hold.unit, delivery.hold.token
        owner = owners.setdefault((unit, token), delivery.instance)
        if owner != delivery.instance:
            shared.append(f"{delivery}, but the token is {owner}'s")
        seen = newest[unit]
        if not seen or token > seen[-1][1]:
            seen.append((delivery.at_ns, token))
    for delivery in deliveries:
        if not delivery.confirmed or delivery.acking_ns is None:
            continue
        for at_ns, token in newest[delivery.hold.unit]:
            if token > delivery.hold.token and at_ns < delivery.acking_ns:
                stale.append(f"{delivery}, when token {token} was at work")
                break
    return [
        *_finding("two instances with one token", shared),
        *_finding("stale ack counted", stale),
    ]


# --- keys ----------------------------------------------------------------------------------


def _check_key_order(by_event: Mapping[Event, list[Delivery]]) -> list[Finding]:
    early, disordered = [], []
    counted: dict[int, list[tuple[int, Delivery]]] = defaultdict(list)
    for event, deliveries in by_event.items():
        before = by_event.get(Event(event.key, event.number - 1), [])
        for delivery in deliveries if event.number > 1 else ():
            acked = any(
                other.acking_ns is not None
                and other.acking_ns < delivery.at_ns
                and other.hold.token <= delivery.hold.token
                for other in before
            )
            if not acked:
                early.append(f"{delivery}, and the one before it was not acked")
        counts = [delivery for delivery in deliveries if delivery.confirmed] or [
            delivery for delivery in deliveries if delivery.may_count
        ]
        if counts:
            counted[event.key].append((event.number, counts[-1]))
    for numbered in counted.values():
        numbered.sort(key=lambda item: item[0])
        for (_, first), (_, second) in pairwise(numbered):
            if (second.hold.token, second.at_ns) < (first.hold.token, first.at_ns):
                disordered.append(f"{second} before {first}")
    return [
        *_finding("delivered before its turn", early),
        *_finding("out of order", disordered),
    ]


# --- output --------------------------------------------------------------------------------


def _check_outputs(
    by_event: Mapping[Event, list[Delivery]], outputs: Counter[Event]
) -> list[Finding]:
    missing, twice, phantom = [], [], []
    for event, count in outputs.items():
        if count > 1:
            twice.append(f"key {event.key} number {event.number}, {count} times")
        tried = [d for d in by_event.get(event, []) if d.way == "transaction" and d.may_count]
        if not tried:
            phantom.append(f"key {event.key} number {event.number}")
        elif not any(d.confirmed for d in tried):
            # It was committed under way; then nobody else may have acked the event.
            others = [d for d in by_event[event] if d.confirmed]
            phantom += [f"{tried[-1]}, yet {other}" for other in others]
    for event, deliveries in by_event.items():
        done = [d for d in deliveries if d.way == "transaction" and d.confirmed]
        if done and not outputs[event]:
            missing.append(done[0])
    return [
        *_finding("output missing", missing),
        *_finding("output twice", twice),
        *_finding("output of an ack that did not count", phantom),
    ]


def _add(
    totals: Totals,
    deliveries: Sequence[Delivery],
    by_event: Mapping[Event, list[Delivery]],
    outputs: Counter[Event],
) -> Totals:
    stale = 0
    for several in by_event.values():
        acked = [d for d in several if d.confirmed]
        if acked:
            stale += sum(
                d.hold.token < acked[0].hold.token and d.at_ns > (acked[0].settled_ns or 0)
                for d in several
            )
    return msgspec.structs.replace(
        totals,
        deliveries=totals.deliveries + len(deliveries),
        acked=totals.acked + sum(d.confirmed for d in deliveries),
        died_with_acks=totals.died_with_acks
        + sum(d.acking_ns is not None and d.outcome in (None, "unknown") for d in deliveries),
        fenced=totals.fenced + sum(d.outcome == "fenced" for d in deliveries),
        nacked=totals.nacked + sum(d.nacked for d in deliveries),
        stale_deliveries=totals.stale_deliveries + stale,
        tokens=totals.tokens + len({(d.hold.unit, d.hold.token) for d in deliveries}),
        outputs=totals.outputs + sum(outputs.values()),
    )
