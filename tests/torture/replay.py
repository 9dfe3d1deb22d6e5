"""Crash replay: how long before a leader's death the acks were made that its death undid.

A leader stores what is reported at once, so its death alone undoes only what was under way.  Under
torture a report may be late for a reason that is none of the leader's: its connection was cut, the
session of the leader with the catalog was ended, or a process was frozen with a lock of the catalog
in its hands.  Such acks are counted apart, by that reason: every fault that could have held an ack
up, from the last moment at which its member was told of one until the death.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec

HEARD_NS = 1_000_000_000
EVERYBODY = ""
"""The place of a fault that may concern all processes."""


class Line(msgspec.Struct, frozen=True, order=True):
    """One line of a member's journal."""

    at_ns: int
    member: str
    mark: str
    what: str


class Fault(msgspec.Struct, frozen=True):
    """Something that was done, other than to kill a leader, and how long it lasted."""

    kind: str
    at_ns: int
    until_ns: int
    instance: str = EVERYBODY


class Death(msgspec.Struct, frozen=True):
    """A leader was killed."""

    at_ns: int
    leader: str = ""
    asleep: frozenset[str] = frozenset()
    """Who was frozen at that moment."""


class Undone(msgspec.Struct, frozen=True):
    """An ack that did not outlive a leader."""

    death: int
    """Which of them."""
    what: str
    member: str
    age_ms: float
    fault: str = ""
    """What else had happened, if it was not the death alone."""


def measured(deaths: Sequence[Death], acked: Mapping[str, Line]) -> int:
    """How many of the dead had work: somebody was told of acks right before."""
    times = sorted(line.at_ns for line in acked.values())
    return sum(_any_between(times, death.at_ns - HEARD_NS, death.at_ns) for death in deaths)


def undone(
    deaths: Sequence[Death],
    faults: Sequence[Fault],
    given: Mapping[str, Sequence[Line]],
    acked: Mapping[str, Line],
    refused: Mapping[str, Sequence[Line]],
) -> list[Undone]:
    """Every ack that was undone by the death of a leader, or by something else just before."""
    told: dict[str, list[int]] = {}
    for line in sorted(acked.values()):
        told.setdefault(line.member, []).append(line.at_ns)
    found = []
    for number, death in enumerate(deaths):
        at_ns = death.at_ns
        for what, lines in given.items():
            before = [line for line in lines if line.at_ns < at_ns]
            counted = acked.get(what)
            if not before or lines[-1].at_ns < at_ns:
                continue
            if counted is not None and counted.at_ns < at_ns:
                continue
            last = before[-1]
            if any(last.at_ns <= line.at_ns < at_ns for line in refused.get(what, ())):
                continue  # undone before
            heard = told.get(last.member, [])
            # Who was told nothing of late had lost its leader before.
            if last.member in death.asleep or not _any_between(heard, at_ns - HEARD_NS, at_ns):
                continue
            worked = bisect_right(heard, last.at_ns)
            since_ns = heard[worked - 1] if worked else 0
            fault = _fault(faults, death, last.member, since_ns)
            found.append(Undone(number, what, last.member, (at_ns - last.at_ns) / 1e6, fault))
    return found


def _any_between(times: Sequence[int], low: int, high: int) -> bool:
    at = bisect_right(times, low - 1)
    return at < len(times) and times[at] < high


def _fault(faults: Sequence[Fault], death: Death, member: str, since_ns: int) -> str:
    """The last fault that could have held up a member's report since some moment."""
    places = (EVERYBODY, member, death.leader)
    kinds = [
        fault.kind
        for fault in faults
        if fault.instance in places and fault.at_ns < death.at_ns and fault.until_ns > since_ns
    ]
    return kinds[-1] if kinds else ""
