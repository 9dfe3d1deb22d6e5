"""What the shared-group cores cost: full rebalances and single progress reports.

``python -m bench.cores_shared`` prints the numbers; ``run()`` returns them.  Times are CPU time of
this process.  A full rebalance plans for all members, claims every unit and sends every grant.
The targets at 10,000 segments and 1,000 members: a full rebalance within 1 s, one report within
50 µs, and cost that grows no faster than segments + members.
"""

from __future__ import annotations

import gc
import time
from typing import Any

from bench.harness import Result, at_most, show
from headrace.groups.progress import Progress
from headrace.groups.shared.core.balance import plan_by_lag
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.messages import (
    LeaderWanted,
    Ping,
    UnitReport,
    UpdateProgress,
    unit_of,
)
from headrace.groups.shared.core.records import (
    Commit,
    LeaderEffect,
    Listing,
    SegmentInfo,
    ToBorrower,
)
from headrace.groups.shared.core.settings import LeaderSettings

GROUP = "audit:orders.>"
SIZES = ((1_000, 100), (10_000, 1_000), (100_000, 10_000))
REPORTS = 20_000
TARGET_SEGMENTS = 10_000


def run(sizes: tuple[tuple[int, int], ...] = SIZES) -> list[Result]:
    """Measure every size."""
    return [result for segments, members in sizes for result in _measure(segments, members)]


def led(members: int) -> Leader:
    """A leader; the last of its members is still to come."""
    leader = Leader(
        GROUP, name="n1", token=1, stored=(), settings=LeaderSettings(), now_ms=0
    )  # fmt: skip
    join(leader, 0, members - 1)
    return leader


def listing(segments: int) -> Listing:
    """So many segments, all with much to do."""
    return Listing(
        1, tuple(SegmentInfo(unit_of("orders", n), head=1_000_000) for n in range(segments))
    )


def rebalance(leader: Leader) -> None:
    """Plan for all members, claim every unit and send every grant."""
    finish(leader, leader.balance(0))


def install(leader: Leader) -> None:
    """Every member says that it has what it was granted."""
    for state in leader.units.values():
        report = UnitReport(state.unit, state.token)
        finish(leader, leader.receive(_update(state.borrower, report), 0))


def _measure(segments: int, members: int) -> list[Result]:
    leader, all_segments = led(members), listing(segments)
    listed_ms = _timed(lambda: finish(leader, leader.segments_listed(all_segments, 0)))
    full_ms = _timed(lambda: rebalance(leader))
    install(leader)
    # Nobody leaves, one more joins: every member's share has to be looked at again.
    join(leader, members - 1, members)
    one_more_ms = _timed(lambda: leader.balance(0))
    owned = _owned(leader)
    by_lag_ms = _timed(lambda: plan_by_lag(owned, (), slack_percent=20))
    size = f"{segments:,} segments x {members:,} members"
    report_us = _report_us(leader)
    per_part = f"{full_ms * 1000 / (segments + members):.1f} us per segment and member"
    timed = segments == TARGET_SEGMENTS
    name = f"shared: full rebalance, {size}"
    reporting = f"shared: progress report, {size}"
    return [
        at_most(name, full_ms / 1000, 1.0, "s", per_part)
        if timed
        else Result(name, full_ms / 1000, "s", detail=per_part),
        Result(f"shared: one more member, {size}", one_more_ms, "ms"),
        Result(f"shared: plan by lag, {size}", by_lag_ms, "ms"),
        Result(f"shared: first listing, {size}", listed_ms, "ms"),
        at_most(reporting, report_us, 50.0, "us") if timed else Result(reporting, report_us, "us"),
    ]


def join(leader: Leader, first: int, last: int) -> None:
    for n in range(first, last):
        name = f"s{n}:1:1"
        leader.receive(LeaderWanted(GROUP, name, 0, f"s{n}"), 0)
        leader.receive(Ping(GROUP, name, 1, 1), 0)


def finish(leader: Leader, effects: list[LeaderEffect]) -> None:
    """Let every commit succeed at once."""
    while commits := [effect for effect in effects if isinstance(effect, Commit)]:
        effects = []
        for commit in commits:
            claimed = [(claim.unit, Progress()) for claim in commit.claims]
            effects += leader.committed(commit.number, claimed, 0)


def _owned(leader: Leader) -> dict[str, list[tuple[str, int]]]:
    """What everyone has, with lags that differ."""
    return {
        borrower: [(unit, (n * 7919) % 1000) for n, unit in enumerate(units)]
        for borrower, units in leader.borrowers.items()
    }


def _update(borrower: str, report: UnitReport, number: int = 1) -> UpdateProgress:
    return UpdateProgress(GROUP, borrower, 1, number, (report,))


def reports(leader: Leader, count: int) -> list[UpdateProgress]:
    """Reports of one acked event each, of one unit after the other."""
    states = [s for s in leader.units.values() if s.status == "granted"]
    messages = []
    for n in range(count):
        state = states[n % len(states)]
        offset = n // len(states)
        report = UnitReport(state.unit, state.token, ((offset, offset + 1),))
        messages.append(_update(state.borrower, report, n + 2))
    return messages


def _report_us(leader: Leader) -> float:
    """One report of one acked event, stored at once and confirmed."""
    spent = 0.0
    for message in reports(leader, REPORTS):
        began = time.process_time()
        effects = leader.receive(message, 0)
        spent += time.process_time() - began
        commit = next(effect for effect in effects if isinstance(effect, Commit))
        began = time.process_time()
        confirmed = leader.committed(commit.number, (), 0)
        spent += time.process_time() - began
        assert any(isinstance(effect, ToBorrower) for effect in confirmed)
    return spent / REPORTS * 1_000_000


def _timed(action: Any) -> float:
    gc.collect()
    began = time.process_time()
    action()
    return (time.process_time() - began) * 1000


if __name__ == "__main__":
    show(run())
