"""The benchmark of the cores runs, and says whether its targets are met."""

from __future__ import annotations

from bench.cores_regions import run


def test_benchmark_gives_a_figure_for_every_operation() -> None:
    results = run(ranges=5000)
    assert all(result.value > 0 for result in results)
    assert sum(result.ok is not None for result in results) >= 3
