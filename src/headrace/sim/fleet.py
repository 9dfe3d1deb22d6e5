"""Runs many seeds, in this process or in two; the results do not depend on which.

Seeds are independent of each other, so they are dealt out in chunks and come back in order.  The
caller stops at the first failure by leaving the loop; chunks not begun are then dropped.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from headrace.errors import InvalidInputError
from headrace.sim.faults import Fault
from headrace.sim.runner import RunResult, run_seed
from headrace.sim.scenarios import scenario_named

CHUNK_SEEDS = 10
JOBS_MAX = 2
SEEDS_MAX = 10_000_000


class InvalidSeedsError(InvalidInputError):
    """A range of seeds cannot be read."""


def parse_seeds(text: str) -> range:
    """Read ``A..B`` (both included) or a single seed."""
    first, dots, last = text.partition("..")
    try:
        low = int(first)
        high = int(last) if dots else low
    except ValueError:
        raise InvalidSeedsError(f"cannot read seeds {text!r}; write A..B or one number") from None
    if not 0 <= low <= high:
        raise InvalidSeedsError(f"seeds {text!r} must be from 0 up, the first not above the last")
    if high - low >= SEEDS_MAX:
        raise InvalidSeedsError(f"seeds {text!r} are more than {SEEDS_MAX}")
    return range(low, high + 1)


def run_fleet(
    scenario: str,
    seeds: Sequence[int],
    *,
    steps: int | None,
    faults: frozenset[Fault],
    jobs: int = 1,
) -> Iterator[RunResult]:
    """Run every seed, in order of seeds."""
    if jobs <= 1 or len(seeds) <= CHUNK_SEEDS:
        for seed in seeds:
            yield run_seed(scenario_named(scenario), seed, steps=steps, faults=faults)
        return
    chunks = [seeds[at : at + CHUNK_SEEDS] for at in range(0, len(seeds), CHUNK_SEEDS)]
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, JOBS_MAX), mp_context=context)
    try:
        # A bounded number of chunks is under way, so that stopping early stops soon.
        ahead = [pool.submit(_run_chunk, scenario, c, steps, faults) for c in chunks[:4]]
        waiting = iter(chunks[4:])
        while ahead:
            results = ahead.pop(0).result()
            following = next(waiting, None)
            if following is not None:
                ahead.append(pool.submit(_run_chunk, scenario, following, steps, faults))
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)


def _run_chunk(
    scenario: str, seeds: Sequence[int], steps: int | None, faults: frozenset[Fault]
) -> list[RunResult]:
    results = []
    for seed in seeds:
        results.append(run_seed(scenario_named(scenario), seed, steps=steps, faults=faults))
        if not results[-1].ok:
            break  # the caller stops here as well
    return results
