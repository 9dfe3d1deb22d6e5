"""Figures against the baseline: which way is better, and what is marked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.harness import Result, against, at_least, at_most, baseline


def rate(value: float) -> Result:
    return at_least("publish", value, 0.6, "of bare SQLite")


def delay(value: float) -> Result:
    return at_most("publish", value, 2.0, "x bare commit")


@pytest.mark.parametrize(
    ("now", "before", "shown"),
    [
        (rate(0.8), rate(1.0), "[red]0.80 x worse[/]"),
        (rate(0.95), rate(1.0), "0.95 x"),
        (rate(1.2), rate(1.0), "[green]1.20 x better[/]"),
        (delay(1.2), delay(1.0), "[red]1.20 x worse[/]"),
        (delay(0.8), delay(1.0), "[green]0.80 x better[/]"),
        (Result("a", 8.0, "events/s"), Result("a", 10.0, "events/s"), "[red]0.80 x worse[/]"),
        (Result("a", 8.0, "ms"), Result("a", 10.0, "ms"), "[green]0.80 x better[/]"),
        (at_most("a", -200.0, 9, "ms"), at_most("a", -300.0, 9, "ms"), "[red]0.67 x worse[/]"),
        (Result("a", 0.0, "moved"), Result("a", 0.0, "moved"), "was 0"),
        (Result("a", 3.0, "moved"), Result("a", 0.0, "moved"), "[red]was 0 worse[/]"),
    ],
)
def test_a_line_is_marked_when_it_is_worse_by_more_than_a_tenth(
    now: Result, before: Result, shown: str
) -> None:
    assert against(now, before) == shown


def test_a_line_without_a_baseline_is_new() -> None:
    assert against(rate(1.0), None) == "new"


def test_figures_of_one_name_are_told_apart_by_their_unit(tmp_path: Path) -> None:
    both = [Result("sticky", 1.0, "ms"), Result("sticky", 2.0, "moved")]
    (tmp_path / "baseline.json").write_bytes(msgspec.json.encode(both))
    assert list(baseline(tmp_path / "baseline.json").values()) == both
    assert baseline(tmp_path / "none.json") == {}
