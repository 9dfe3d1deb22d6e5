"""``headrace reader``: what people type, what they see, and what bad input does not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import run


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Type a command; returns (status, what it printed, what it complained)."""

    def typed(*words: str) -> tuple[int, str, str]:
        status = run(["--catalog", str(tmp_path / "data"), *words])
        said = capsys.readouterr()
        return status, said.out, said.err

    typed("stream", "create", "orders", "--subjects", "orders.>", "--segments", "2")
    for n in range(4):
        typed("publish", f"orders.{n}", f"value {n}", "--key", str(n))
    return typed


def test_a_group_from_its_making_to_its_end(typed: Any, tmp_path: Path) -> None:
    assert typed("reader", "create", "report", "--streams", "orders")[0] == 0
    status, out, _ = typed("reader", "read", "report", "r1", "--limit", "2")
    assert (status, len(out.splitlines())) == (0, 2)
    status, out, _ = typed("reader", "lag", "report", "--json")
    assert (status, json.loads(out)["lag_events"]) == (0, 2)
    status, out, _ = typed("reader", "checkpoint", "report", "nightly")
    (tmp_path / "kept").write_text(out.replace("\n", ""))
    assert out.startswith("headrace-checkpoint:")
    assert typed("reader", "read", "report", "r1", "--idle", "0.5")[1].count("value") == 2
    status, out, _ = typed(
        "reader", "reset", "report", "--cut", str(tmp_path / "kept"), "--dry-run"
    )
    assert (status, "would begin again" in out) == (0, True)
    assert json.loads(typed("reader", "lag", "report", "--json")[1])["lag_events"] == 0
    assert typed("reader", "reset", "report", "--checkpoint", "nightly")[0] == 0
    assert json.loads(typed("reader", "lag", "report", "--json")[1])["lag_events"] == 2
    assert typed("reader", "reset", "report", "--start", "earliest")[0] == 0
    out = typed("reader", "read", "report", "r2", "--exec", "true", "--idle", "0.5s")[1]
    assert json.loads(typed("reader", "lag", "report", "--json")[1])["lag_events"] == 0
    assert "report" in typed("reader", "ls")[1]
    assert "retains positions" in typed("reader", "info", "report")[1]
    assert "sought" in typed("reader", "explain", "report")[1]
    assert typed("reader", "configure", "report", "--retain", "nothing")[0] == 0
    typed("stream", "create", "clicks", "--subjects", "clicks.>")
    assert typed("reader", "streams", "add", "report", "clicks", "--start", "latest")[0] == 0
    assert typed("reader", "streams", "drop", "report", "orders")[0] == 0
    assert json.loads(typed("reader", "info", "report", "--json")[1])["streams"] == ["clicks"]
    assert "nothing changed" in typed("reader", "offline", "report", "r9")[1]
    assert typed("reader", "cut", "report")[1].startswith("headrace-cut:")
    assert typed("reader", "rm", "report", "--yes")[0] == 0
    assert "no reader groups" in typed("reader", "ls")[1]


@pytest.mark.parametrize(
    "words",
    [
        ("info", "nope"),
        ("create", "g", "--streams", ""),
        ("create", "g", "--streams", "nope"),
        ("create", "g", "--streams", "orders,orders"),
        ("create", "a.b", "--streams", "orders"),
        ("create", "g", "--streams", "orders", "--retain", "all"),
        ("create", "g", "--streams", "orders", "--start", "noon"),
        ("create", "g", "--streams", "orders", "--start", "1999-12-31T00:00Z"),
        ("create", "g", "--streams", "orders", "--start", "2999-12-31T00:00Z"),
        ("reset", "report", "--start", "1999-12-31T00:00Z", "--yes"),
        ("reset", "report", "--start", "1999-12-31T00:00Z", "--dry-run"),
        ("create", "report", "--streams", "orders", "--start", "latest"),
        ("read", "report", "no/slash"),
        ("read", "report", "r1", "--limit", "0"),
        ("checkpoint", "report", ""),
        ("checkpoint", "report", "c", "--wait", "soon"),
        ("reset", "report", "--checkpoint", "nope"),
        ("reset", "report", "--checkpoint", "a", "--start", "latest"),
        ("offline", "report", "r1", "--position", "orders/0"),
        ("streams", "drop", "report", "nope"),
        ("streams", "add", "report", "nope"),
        ("streams", "add", "report", "orders"),
        ("reset", "report", "--cut", "no-such-file", "--yes"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(typed: Any, words: tuple[str, ...]) -> None:
    typed("reader", "create", "report", "--streams", "orders")
    before = typed("reader", "info", "report", "--json")[1]
    status, out, err = typed("reader", *words)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert typed("reader", "info", "report", "--json")[1] == before


def test_a_damaged_text_of_a_cut_is_refused_with_what_is_wrong_said_once(
    typed: Any, tmp_path: Path
) -> None:
    typed("reader", "create", "report", "--streams", "orders")
    text, kept = typed("reader", "cut", "report")[1], tmp_path / "cut"
    kept.write_text(text[:30] + ("A" if text[30] != "A" else "B") + text[31:])
    status, _, said = typed("reader", "reset", "report", "--cut", str(kept), "--yes")
    assert (status, said.count("not the text of a cut")) == (2, 1)
    assert "checksum does not match" in said


@pytest.mark.parametrize("idle", ["1x", "-1", "1e9", "", "nan", "99999999999999w"])
def test_a_wait_that_is_no_duration_is_refused(typed: Any, idle: str) -> None:
    assert typed("reader", "create", "report", "--streams", "orders")[0] == 0
    status, _, said = typed("reader", "read", "report", "r1", "--idle", idle)
    assert (status, "is not a duration; write 30, 30s, 15m or 2h" in said) == (2, True)
