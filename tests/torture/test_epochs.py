"""The torture of epochs, in short; and an account that finds what it is there for."""

from __future__ import annotations

from pathlib import Path

from headrace.epochs.core.lines import Line, Span
from tests.torture.epoch_account import (
    Counted,
    Stored,
    count,
    judge_acks,
    judge_chain,
    judge_relay,
    judge_sources,
)
from tests.torture.epoch_worker import Seen, rows_of
from tests.torture.epochs import SMALL, torture_epochs


def line(token: int, lower: int, *times: int, at: int = 0, rows: int = 0, **more: object) -> Line:
    spans = (Span(0, at, at + rows, ()),) if rows else ()
    return Line("p0", token, (lower,), 0, times, spans, **more)  # type: ignore[arg-type]


def stored(*epochs: int) -> dict[tuple[int, int], Stored]:
    return {(0, at): Stored(epoch, b"%d" % at) for at, epoch in enumerate(epochs)}


def test_lines_that_lie_are_found() -> None:
    good = [line(1, 0, 0, rows=2), line(2, 0, taken_back=(0,)), line(2, 1, 0, at=2, rows=1)]
    counted = count(good, stored(0, 0, 0))
    assert counted.findings == []
    assert counted.rows == {("p0", 0): [b"2"]}
    assert counted.taken_back == 2
    assert "when replaced" in count([*good, line(1, 1)], stored(0, 0, 0)).findings[0]
    assert "not there" in count(good, stored(0, 0)).findings[0]
    assert "in no line" in count(good, stored(0, 0, 0, 0)).findings[0]
    assert "went back" in count([*good, line(2, 0)], stored(0, 0, 0)).findings[0]
    late = [*good, line(2, 1, 0, at=3, rows=1)]
    assert "complete is 1" in count(late, stored(0, 0, 0, 0)).findings[0]


def test_an_epoch_that_is_not_its_source_is_found() -> None:
    epoch = next(epoch for epoch in range(100) if rows_of("p0", epoch) == 3)
    rows = {
        ("p0", each): [f"p0 {each} {row} 1".encode() for row in range(rows_of("p0", each))]
        for each in range(epoch + 1)
    }

    def judged(*values: bytes) -> list[str]:
        given = rows | {("p0", epoch): list(values)}
        return judge_sources(Counted(epoch + 1, given, 0, set(), []), ["p0"])

    first, second, third = rows["p0", epoch]
    assert judged(first, second, third) == []
    assert "has rows" in judged(first, second)[0]
    assert "has rows" in judged(first, second, third, third)[0]
    assert "several lives" in judged(first, second, third[:-1] + b"2")[0]
    assert "another" in judged(first, second, b"p1" + third[2:])[0]


def test_what_is_lost_given_twice_or_not_whole_is_found() -> None:
    whole = {0: "a", 1: "b", 2: "c"}
    assert judge_chain("x", [(0, "a"), (1, "b"), (2, "c")], whole) == []
    assert "lost [1]" in judge_chain("x", [(0, "a"), (2, "c")], whole)[0]
    assert "twice [1]" in judge_chain("x", [(0, "a"), (1, "b"), (1, "b"), (2, "c")], whole)[0]
    assert "given as" in judge_chain("x", [(0, "a"), (1, "z"), (2, "c")], whole)[0]


def seen(kind: str, at_ns: int, epoch: int, under: int = 1, life: str = "1") -> Seen:
    return Seen(life, at_ns, under, kind, [(epoch, "ab"[epoch])])


def test_what_comes_again_after_its_ack_is_found() -> None:
    whole = {0: "a", 1: "b"}
    good = [seen("given", 1, 0), seen("acked", 2, 0), seen("given", 3, 1)]
    assert judge_acks("x", good, whole) == []
    later = [seen("given", 5, 0, 2, "2"), seen("acked", 6, 0, 2, "2"), seen("given", 7, 1, 2, "2")]
    # One that was frozen has what was acked meanwhile in its hands, but acks it no more: also if
    # it was frozen before it gave anything, and gives all of it late.
    assert judge_acks("x", [*later, seen("given", 9, 0, 1)], whole) == []
    assert "acked twice" in " ".join(judge_acks("x", [*later, seen("acked", 9, 0, 1)], whole))
    assert "came again" in judge_acks("x", [*good, seen("given", 9, 0, 2, "2")], whole)[0]
    assert "came again" in judge_acks("x", [*good, seen("given", 9, 0, 1)], whole)[0]
    back = [seen("given", 1, 0), seen("given", 2, 1), seen("acked", 3, 1), seen("acked", 9, 0, 2)]
    assert judge_acks("x", back, whole) == ["x: epoch 0 was acked after 1"]
    assert "never given" in judge_acks("x", good[:2], whole)[0]


def test_a_relay_that_is_not_all_or_nothing_is_found() -> None:
    def judged(lag: int, *epochs: list[bytes]) -> list[str]:
        rows = {("r", epoch): values for epoch, values in enumerate(epochs)}
        return judge_relay(Counted(2, rows, 0, set(), []), [b"1", b"2"], lag)

    assert judged(0, [b"1", b"1"], [b"2", b"2"]) == []
    assert "epoch 1 is" in judged(0, [b"1", b"1"], [b"2"])[0]
    assert "twice" in judged(1, [b"1", b"1"], [b"1", b"1"])[0]
    assert "are not acked" in judged(1, [b"1", b"1"], [b"2", b"2"])[0]
    assert "frontier 2" in judged(1, [b"1", b"1"])[0]


def test_epochs_stay_whole_and_come_once_when_processes_are_killed(tmp_path: Path) -> None:
    result = torture_epochs(("sqlite",), 8, 3, tmp_path, crews=SMALL)
    assert result.findings == []
    assert result.outcomes[0].faults == {
        "kill": 2, "exact": 2, "freeze": 2, "split": 1, "merge": 1
    }  # fmt: skip
    assert result.outcomes[0].epochs
    assert result.outcomes[0].relayed
