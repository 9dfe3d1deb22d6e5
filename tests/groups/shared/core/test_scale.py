"""Ten times as many segments and members cost ten times as much, and a report what it did before.

Counted in steps of Python and not in seconds, so that it is the same on every machine; the times
have their targets in ``make bench``.
"""

from __future__ import annotations

from bench.cores_shared import finish, install, join, led, listing, rebalance, reports
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.messages import UpdateProgress
from tests.support import steps

SMALL = (200, 20)
LARGE = (2_000, 200)
REPORTS = 20


def costs(segments: int, members: int) -> tuple[int, int, int]:
    """Steps of a full rebalance, of one for one more member, and of some reports."""
    leader = led(members)
    finish(leader, leader.segments_listed(listing(segments), 0))
    full = steps(lambda: rebalance(leader))
    assert sum(len(units) for units in leader.borrowers.values()) == segments
    install(leader)
    join(leader, members - 1, members)
    one_more = steps(lambda: leader.balance(0))
    messages = reports(leader, REPORTS)
    return full, one_more, steps(lambda: take_in(leader, messages))


def take_in(leader: Leader, messages: list[UpdateProgress]) -> None:
    for message in messages:
        finish(leader, leader.receive(message, 0))


def test_the_cost_of_a_rebalance_grows_with_segments_and_members_and_that_of_a_report_not() -> None:
    small, large = costs(*SMALL), costs(*LARGE)
    assert large[0] <= 11 * small[0]
    assert large[1] <= 11 * small[1]
    assert large[2] <= 1.1 * small[2]
