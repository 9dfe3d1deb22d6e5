"""The adapter for reader groups sees everything that its format names."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conformance.adapters.reader import ReaderCase, check
from tests.conformance.runner import main

RECORDED = json.loads((Path(__file__).parent / "cases" / "reader.json").read_text())["cases"]


def faults(case: dict[str, Any]) -> list[str]:
    return check(msgspec.convert(case, ReaderCase))


def case(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    start = {"A/0": 0, "A/1": 0, "A/2": 0, "A/3": 0}
    return {"id": "T", "title": "t", "start": start, "steps": list(steps)} | more


def step(op: str, *, expect: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"op": op, "expect": expect or {}} | more


def changed(value: Any) -> Iterator[Any]:
    """Values close to one, each of them wrong."""
    match value:
        case bool():
            yield not value
            yield int(value)
        case int():
            yield value + 1
        case str():
            yield f"{value}x"
        case None:
            yield {}
        case dict():
            yield value | {"Z/9": value.get("Z/9", next(iter(value.values()), 1))}
            for key, inner in value.items():
                if inner not in ({}, []):
                    yield {k: v for k, v in value.items() if k != key}
                for other in changed(inner):
                    yield value | {key: other}
        case list() if value:
            yield value[1:]


@pytest.mark.parametrize("number", range(len(RECORDED)), ids=[c["id"] for c in RECORDED])
def test_every_expectation_that_is_changed_fails_its_case(number: int) -> None:
    recorded = RECORDED[number]
    assert faults(recorded) == []
    tried = 0
    for at, each in enumerate(recorded["steps"]):
        for field, value in each["expect"].items():
            for other in changed(value):
                if field == "completed" and not set(other) >= set(value):
                    continue  # checkpoints that are not named are not asked about
                wrong = copy.deepcopy(recorded)
                wrong["steps"][at]["expect"][field] = other
                try:
                    found = faults(wrong)
                except msgspec.ValidationError as malformed:
                    found = [str(malformed)]
                assert found, f"step {at + 1}: {field} {other} passes"
                tried += 1
    assert tried > 50


JOINS = [step("join", reader=reader) for reader in ("r1", "r2", "r3")]


def test_in_a_race_whoever_comes_late_decides_again() -> None:
    race = step(
        "race",
        readers=["r1", "r2", "r3"],
        order=["r2", "r3", "r1"],
        expect={
            "result": {"r1": 2, "r2": 1, "r3": 1},
            "counts": {"r1": 2, "r2": 1, "r3": 1},
            "generator_calls": 5,
            "unassigned_count": 0,
        },
    )
    assert faults(case(*JOINS, race, start={f"A/{n}": 0 for n in range(4)})) != []
    race["expect"] |= {"result": {"r1": 1, "r2": 1, "r3": 1}, "unassigned_count": 1}
    race["expect"]["counts"] = {"r1": 1, "r2": 1, "r3": 1}
    assert faults(case(*JOINS, race)) == []
    race["expect"]["generator_calls"] = {"r1": 2, "r2": 1, "r3": 2}
    assert faults(case(*JOINS, race)) == []
    race["expect"]["generator_calls"] = {"r1": 2, "r2": 2, "r3": 1}
    assert faults(case(*JOINS, race)) != []


def test_in_a_race_for_the_last_segment_the_loser_gets_nothing() -> None:
    race = step("race", readers=["r1", "r2"], order=["r2", "r1"])
    race["expect"] = {"result": {"r1": 0, "r2": 1}, "generator_calls": 3, "unassigned": {}}
    assert faults(case(*JOINS[:2], race, start={"A/0": 7})) == []


def test_a_reset_may_name_a_checkpoint_and_bring_an_end_cut() -> None:
    steps = [
        *JOINS[:1],
        step("acquire", reader="r1", expect={"result": 1}),
        step("checkpoint_start", name="c1"),
        step("checkpoint_ack", name="c1", reader="r1", positions={"A/0": 9}),
        step("offline", reader="r1", position={"A/0": 30}, expect={"unassigned": {"A/0": 30}}),
        step("reset", checkpoint="c1", expect={"unassigned": {"A/0": 9}, "assigned": {}}),
        step("reset", cut={"A/1": 3}, end_cut={"A/1": 4}, expect={"unassigned": {"A/1": 3}}),
        *JOINS[:1],
        step("claim", reader="r1", segment="A/1"),
        step("end_of_segment", reader="r1", segment="A/1", expect={"end_of_data": True}),
    ]
    assert faults(case(*steps, start={"A/0": 0}, predecessors={"A/2": ["A/1"]})) == []


def test_an_unknown_step_is_a_malformed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"format": "reader/1", "cases": [case(step("dance"))]}))
    assert main([str(path)]) == 2
    told = capsys.readouterr().err
    assert "bad.json: case 1 (T): " in told
    assert "`$.steps[0].op`" in told
