"""Ten thousand segments and a thousand members are no trouble."""

from __future__ import annotations

from bench.cores_shared import run


def test_rebalance_and_reports_stay_within_their_targets() -> None:
    small, large = run(((1_000, 100), (10_000, 1_000)))
    assert large["full_rebalance_ms"] <= 1000
    assert large["report_us"] <= 50
    # Ten times as much may cost ten times as much, and some for noise, but not a hundred times.
    assert large["full_rebalance_ms"] <= 30 * max(small["full_rebalance_ms"], 5)
    assert large["report_us"] <= 4 * max(small["report_us"], 5)
