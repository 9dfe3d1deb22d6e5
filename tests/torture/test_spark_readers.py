"""The torture of a Spark query that is a reader, in short; and a judge that finds what is wrong."""

from __future__ import annotations

from pathlib import Path

from tests.torture.spark_readers import KEYS, judge, torture_spark_reader


def test_what_is_lost_written_twice_or_out_of_order_is_found() -> None:
    right = list(range(3 * KEYS))
    assert judge(right, len(right), 1) == []
    assert judge(right * 2, len(right), 2) == []
    assert "missing" in judge(right[1:], len(right), 1)[0]
    assert "too often" in judge([*right, 5], len(right), 1)[0]
    assert "out of order" in judge([KEYS, *range(KEYS), *right[KEYS + 1 :]], len(right), 1)[0]


def test_a_driver_that_is_killed_in_its_batches_loses_and_doubles_nothing(tmp_path: Path) -> None:
    points = ("open", "staged", "counted")
    result = torture_spark_reader("sqlite", len(points), 0, 11, tmp_path, points=points)
    assert result.findings == []
    assert result.kills == len(points)
