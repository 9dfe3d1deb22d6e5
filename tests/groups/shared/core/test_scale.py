"""Ten thousand segments and a thousand members are no trouble."""

from __future__ import annotations

from bench.cores_shared import run


def test_rebalance_and_reports_stay_within_their_targets() -> None:
    figures = {result.name: result for result in run(((1_000, 100), (10_000, 1_000)))}
    small, large = (
        [
            figures[f"shared: {what}, {size} members"]
            for what in ("full rebalance", "progress report")
        ]
        for size in ("1,000 segments x 100", "10,000 segments x 1,000")
    )
    assert all(result.ok for result in large)
    # Ten times as much may cost ten times as much, and some for noise, but not a hundred times.
    assert large[0].value <= 30 * max(small[0].value, 0.005)
    assert large[1].value <= 4 * max(small[1].value, 5)
