"""The recorded cases hold, and the runner tells apart what holds, fails and cannot be run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.runner import main

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))
GOOD = {"subject": "foo.a", "filter": "foo.*", "wildcards": [1], "partitions": 1, "partition": 0}


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def cases(*given: Any) -> dict[str, Any]:
    return {"format": "partition/1", "cases": list(given)}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_recorded_cases_hold(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main([str(path)])
    output = capsys.readouterr().out
    assert status == 0, output
    count = len(json.loads(path.read_text())["cases"])
    assert output.count("\nok") + output.startswith("ok") == count
    assert output.endswith(f"{count} of {count} cases hold\n")


def test_there_are_recorded_cases_of_partitions() -> None:
    assert "partition" in [path.stem for path in CASES]


def test_a_case_that_does_not_hold_gives_status_1_and_the_rest_still_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = GOOD | {"partitions": 10, "partition": 9}
    first = write(tmp_path / "first.json", cases(wrong, GOOD))
    second = write(tmp_path / "second.json", cases(GOOD))
    assert main([first, second]) == 1
    output = capsys.readouterr().out
    assert "FAIL    1 foo.a by foo.* [1] of 10\n          expected partition 9, got" in output
    assert "first.json: 1 of 2 cases hold" in output
    assert "second.json: 1 of 1 cases hold" in output


def test_an_error_of_the_core_fails_its_case_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "cases.json", cases(GOOD | {"wildcards": [2]}, GOOD))
    assert main([path]) == 1
    output = capsys.readouterr().out
    assert "raised InvalidPartitioningError: invalid wildcard number 2" in output
    assert "1 of 2 cases hold" in output


def test_fields_that_are_notes_are_ignored(tmp_path: Path) -> None:
    content = cases(GOOD | {"note": "a word", "why": 1}) | {"note": "more", "model": {"a": 1}}
    assert main([write(tmp_path / "cases.json", content)]) == 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ({"cases": []}, "`format`"),
        ({"format": "partition/1"}, "`cases`"),
        ({"format": "partition/1", "cases": {}}, "$.cases"),
        (cases(), "'cases' is empty"),
        ({"format": "unheard-of/3", "cases": [{}]}, "no adapter for format 'unheard-of/3'"),
        (cases(GOOD, {"subject": "foo.a"}), "case 2: Object missing required field `filter`"),
        (cases(GOOD | {"wildcards": ["1"]}), "case 1: Expected `int`, got `str` - at `$.wildcards"),
        (cases(GOOD | {"partitions": 0}), "case 1: Expected `int` >= 1 - at `$.partitions`"),
        (cases(GOOD | {"partition": None, "id": "P7"}), "case 1 (P7): Expected `int`, got `null`"),
        (cases("text"), "case 1: Expected `object`, got `str`"),
    ],
)
def test_a_malformed_file_gives_status_2_and_names_file_case_and_field(
    content: Any, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path / "good.json", cases(GOOD))
    path = write(tmp_path / "bad.json", content)
    assert main([good, path]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "bad.json: " in captured.err
    assert told in captured.err


def test_a_missing_file_and_no_file_give_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.json")]) == 2
    assert "none.json: cannot be read: No such file" in capsys.readouterr().err
    assert main([]) == 2
    assert "usage:" in capsys.readouterr().err
