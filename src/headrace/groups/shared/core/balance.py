"""Who should have how much: pure arithmetic, linear in units and members.

*By count.*  Shares differ by one at most, and those who already have the most get the larger
ones.  Then exactly what exceeds a share has to move, which is the least any balanced outcome can
do, and every unit taken away is missing somewhere else: nothing is revoked to be granted back.

*By lag.*  A unit weighs its lag plus one (so idle units still spread by count).  Free units go,
heaviest first, to whoever carries least.  A unit moves only if its owner exceeds the mean by more
than the slack and the move leaves its new owner lighter than the old one was: each move lowers
the sum of squares, so moves come to an end, and no pair of them cancels out.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from headrace.groups.shared.core.messages import Unit


def shares_by_count(units: int, loads: Mapping[str, int]) -> dict[str, int]:
    """How many units each member should have, given how many it has."""
    if not loads:
        return {}
    base, larger = divmod(units, len(loads))
    by_load = sorted(sorted(loads), key=loads.__getitem__, reverse=True)  # by name among equals
    return {member: base + (rank < larger) for rank, member in enumerate(by_load)}


class LagPlan(msgspec.Struct, frozen=True):
    """What to grant and what to move."""

    grants: tuple[tuple[Unit, str], ...]
    moves: tuple[tuple[Unit, str, str], ...]
    """(unit, from, to)"""


def plan_by_lag(
    owned: Mapping[str, Sequence[tuple[Unit, int]]],
    free: Sequence[tuple[Unit, int]],
    *,
    slack_percent: int,
) -> LagPlan:
    """Spread free units by lag, and move what weighs too much.  Weights are lags."""
    if not owned:
        return LagPlan((), ())
    loads = {member: sum(lag + 1 for _, lag in units) for member, units in owned.items()}
    lightest = [(load, member) for member, load in loads.items()]
    heapq.heapify(lightest)
    grants = []
    for unit, lag in sorted(free, key=lambda item: (-item[1], item[0])):
        load, member = heapq.heappop(lightest)
        grants.append((unit, member))
        loads[member] = load + lag + 1
        heapq.heappush(lightest, (loads[member], member))
    limit = sum(loads.values()) / len(loads) * (1 + slack_percent / 100)
    moves = []
    for member in sorted(owned, key=lambda name: (-loads[name], name)):
        for unit, lag in sorted(owned[member], key=lambda item: (-item[1], item[0])):
            if loads[member] <= limit:
                break
            target_load, target = _lightest(lightest, loads)
            weight = lag + 1
            if target != member and target_load + weight < loads[member]:
                moves.append((unit, member, target))
                loads[member] -= weight
                loads[target] += weight
                heapq.heappush(lightest, (loads[target], target))
                heapq.heappush(lightest, (loads[member], member))
    return LagPlan(tuple(grants), tuple(moves))


def _lightest(heap: list[tuple[int, str]], loads: Mapping[str, int]) -> tuple[int, str]:
    """The least loaded member; entries that are out of date are thrown away on the way."""
    while loads[heap[0][1]] != heap[0][0]:
        heapq.heappop(heap)
    return heap[0]
