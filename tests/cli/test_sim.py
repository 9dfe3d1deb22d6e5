"""``headrace sim``: what it prints, and how it ends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from headrace.cli.sim import app
from headrace.sim import planted
from headrace.sim.planted import PlantedBug


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(list(arguments))
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_seeds_that_hold_end_well_with_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("shared", "--seeds", "0..3", "--steps", "200", "--jobs", "1") == 0
    printed = capsys.readouterr().out
    assert "all promises held" in printed
    assert "states reached" in printed


def test_json_holds_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("shared", "--seeds", "0..2", "--steps", "200", "--json") == 0
    (summary,) = json.loads(capsys.readouterr().out)["summaries"]
    assert summary["seeds"] == 3
    assert summary["steps"] > 600
    assert summary["failures"] == []
    assert summary["faults"]["drop"] > 0


def test_replay_is_the_same_to_the_byte(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("shared", "--replay", "3") == 0
    first = capsys.readouterr().out
    assert run("shared", "--replay", "3") == 0
    assert capsys.readouterr().out == first
    assert first.count("\n") > 200  # not every step has something to show


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nowhere",), "nowhere"),
        (("shared", "--seeds", "9..1"), "9..1"),
        (("shared", "--faults", "flood"), "flood"),
        (("shared", "--steps", "0"), "--steps"),
        (("all", "--replay", "3"), "one scenario"),
        (("shared", "--replay", "-3"), "--replay"),
        (("--planted", "--exhaustive"), "choose one"),
        (("nowhere", "--planted"), "nowhere"),
        (("--exhaustive", "--depth", "0"), "--depth"),
    ],
)
def test_command_that_makes_no_sense_ends_with_2_and_one_line(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert named in printed.err


def test_violation_ends_with_1_the_seed_and_a_shortened_history(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bug = next(bug for bug in planted.planted_bugs() if bug.name.startswith("delivery/"))
    with bug.plant():
        code = run("delivery", "--seeds", "0..99", "--steps", "400", "--jobs", "1")
    assert code == 1
    printed = capsys.readouterr()
    assert "VIOLATION" in printed.out
    assert "seed " in printed.err
    assert "shortened in" in printed.err
    assert "headrace sim delivery --replay" in printed.err


def bug(name: str, finding: str | None) -> PlantedBug:
    return PlantedBug(name, "for a test", contextlib.nullcontext, lambda: finding)


@pytest.fixture
def bugs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PlantedBug]]:
    listed: list[PlantedBug] = []
    monkeypatch.setattr("headrace.cli.sim.planted_bugs", lambda: tuple(listed))
    yield listed
    assert planted.planted_bugs()


def test_planted_bugs_all_found_end_well(
    bugs: list[PlantedBug], capsys: pytest.CaptureFixture[str]
) -> None:
    bugs += [bug("one", "seed 1: order"), bug("two", "golden case")]
    assert run("--planted") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "found 2 of 2"


def test_planted_bug_that_nobody_finds_ends_with_1(
    bugs: list[PlantedBug], capsys: pytest.CaptureFixture[str]
) -> None:
    bugs += [bug("one", "seed 1: order"), bug("two", None)]
    assert run("--planted") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "found 1 of 2"


def test_planted_bugs_of_one_scenario_only(
    bugs: list[PlantedBug], capsys: pytest.CaptureFixture[str]
) -> None:
    bugs += [bug("shared/one", "seed 1: order"), bug("delivery/two", None)]
    assert run("shared", "--planted") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "found 1 of 1"


def test_planted_bugs_as_json(bugs: list[PlantedBug], capsys: pytest.CaptureFixture[str]) -> None:
    bugs.append(bug("one", None))
    assert run("--planted", "--json") == 1
    assert json.loads(capsys.readouterr().out)["found"] == 0


def test_exhaustive_check_prints_states_and_depth(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--exhaustive", "--depth", "2") == 0
    assert "hand-over" in capsys.readouterr().out
