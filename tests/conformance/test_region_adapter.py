"""What the adapter of region cases refuses, and what it does not let pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.runner import main


def run(tmp_path: Path, **case: Any) -> int:
    content = {"id": "T1", "regions": ["a", "b"], "steps": []} | case
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"format": "region-cases/1", "cases": [content]}))
    return main([str(path)])


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"op": "publish", "r": "a"}, "`m` of `$.steps[0]`"),
        ({"op": "dance", "r": "a"}, "'dance'"),
        ({"op": "deliver", "from": "a", "to": "b", "n": "some"}, "`$.n` of `$.steps[0]`"),
        ({"op": "publish", "r": "z", "m": "m1"}, "region 'z' is not one of `regions`"),
        ({"op": "seek", "r": "a"}, "a seek needs one position"),
        ({"r": "a"}, "`op`"),
    ],
)
def test_malformed_step_is_named(
    step: dict[str, Any], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, steps=[step]) == 2
    error = capsys.readouterr().err
    assert "cases.json: case 1 (T1): " in error
    assert told in error


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        ({"pending": {"b": ["m1"]}}, "step 1: pending in b: expected ['m1'], got []"),
        ({"must_not_skip": {"b": ["m1"]}}, "step 1: m1 in b: skipped under snapshots"),
        ({"updates": 3}, "step 1: updates: expected 3, got 0"),
        ({"requests": [{"id": "S1"}]}, "step 1: requests: expected [{'id': 'S1'}], got []"),
        ({"mark_delete": {"a": 0}}, "step 1: mark_delete in a: expected 0, got -1"),
        ({"exists": {"b": False}}, "step 1: exists in b: expected False, got True"),
        ({"logs": {"a": []}}, "step 1: log in a: expected [], got ['m1']"),
        ({"unheard_of": 1}, "step 1: `unheard_of` cannot be checked"),
    ],
)
def test_expectation_that_does_not_hold_fails_the_case(
    expected: dict[str, Any], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [{"op": "publish", "r": "a", "m": "m1"}, {"op": "expect", **expected}]
    assert run(tmp_path, steps=steps) == 1
    assert told in capsys.readouterr().out


def test_acks_replicated_one_by_one_are_checked_under_origin_cursors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        {"op": "publish", "r": "a", "m": "m1"},
        {"op": "publish", "r": "a", "m": "m2"},
        {"op": "deliver", "from": "a", "to": "b"},
        {"op": "ack", "r": "a", "m": "m2"},
        {"op": "deliver", "from": "a", "to": "b"},
    ]
    wanted = {"after_step": 4, "b": ["m1"]}
    assert run(tmp_path, steps=steps, pending_if_individual_acks_are_replicated=wanted) == 0
    wanted = {"after_step": 3, "b": ["m1"]}
    assert run(tmp_path, steps=steps, pending_if_individual_acks_are_replicated=wanted) == 1
    assert "under origin cursors: expected ['m1'], got ['m1', 'm2']" in capsys.readouterr().out
