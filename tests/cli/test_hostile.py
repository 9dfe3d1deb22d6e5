"""Hostile command lines: whatever is typed, the answer is a sentence and never a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import headrace.sync
from headrace.cli import run
from tests.torture import command_lines
from tests.torture.command_lines import Fuzz, there


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "data"
    with headrace.sync.open(folder) as hr:
        hr.create_stream("orders", ["orders.>"], segments=2)
        hr.create_stream("audit", ["audit.>"], partitions=2)
        hr.groups.create_static("audit", "billing", max_members=2, members=["m1"])
        hr.publish("orders.eu", b"1", key="k")
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_every_command_line_ends_in_a_sentence_and_bad_input_changes_nothing(
    tmp_path: Path, seed: int
) -> None:
    with there(tmp_path):
        fuzz = Fuzz(tmp_path, seed)
        for _ in range(80):
            fuzz.one()
    assert fuzz.failures == []
    assert len(fuzz.calls) > 40


def test_the_fuzzer_sees_a_traceback_a_change_and_more_than_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(words: list[str]) -> int:
        if words[0] == "raise":
            raise TypeError("from deep inside")
        if words[0] == "change":
            run(["stream", "rm", "orders", "--yes", "--force"])
        else:
            print("headrace: this\nand that", file=sys.stderr)
        return 2

    monkeypatch.setattr(command_lines, "run", stumble)
    with there(tmp_path):
        fuzz = Fuzz(tmp_path, 0)
        for word in ("raise", "change", "babble"):
            fuzz.one([word])
    assert [each.words for each in fuzz.failures] == [("raise",), ("change",), ("babble",)]
    assert "something was changed" in fuzz.failures[1].why


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["publish", "--file", "x" * 5000 + ".csv", "--subject", "orders.x"], "too long"),
        (["publish", "--json-lines", "x" * 5000], "too long"),
        (["read", "orders", "--catalog", "x" * 5000], "too long"),
        (["session", "ls", "--store", "a\0b"], "NUL"),
        (["publish", "--json-lines", "deep"], "line 1 is nested too deeply"),
        (["read", "orders", "--from", "9" * 30 + "w"], "not a place"),
        (["stream", "set", "orders", "--retention-bytes", "9" * 400], "not a size"),
    ],
)
def test_names_and_nesting_beyond_all_bounds_are_refused_in_a_sentence(
    catalog: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CATALOG", str(catalog))
    Path("deep").write_text('{"subject": "orders.x", "value": ' + "[" * 100_000 + "\n")
    assert run(words) in (1, 2)
    told = capsys.readouterr().err
    assert told.startswith("headrace: ")
    assert said in told
    assert len(told) < 1500
