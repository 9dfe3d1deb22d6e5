"""The torture of readers, in short; and an account that finds what it is there for."""

from __future__ import annotations

from pathlib import Path

from tests.torture.reader_account import Output, Phase, judge
from tests.torture.reader_run import torture_readers

EVENTS = {(0, n): n for n in range(6)}


def out(*numbers: int, token: int = 5) -> list[Output]:
    return [Output(n, token, (0, n)) for n in numbers]


def test_what_is_lost_written_twice_again_or_out_of_order_is_found() -> None:
    start = [Phase(1, frozenset())]
    assert judge(EVENTS, out(0, 1, 2, 3, 4, 5), start, 2) == []
    assert "lost" in judge(EVENTS, out(0, 1, 2, 3, 4), start, 2)[0]
    assert "twice" in judge(EVENTS, out(0, 1, 2, 3, 4, 5, 5), start, 2)[0]
    assert "order" in judge(EVENTS, out(0, 3, 2, 1, 4, 5), start, 2)[0]
    assert "no event" in judge(EVENTS, [*out(0, 1, 2, 3, 4, 5), Output(9, 5, (0, 9))], start, 2)[0]
    back = [*start, Phase(7, frozenset({(0, 0), (0, 1)}))]
    first = out(0, 1, 2, 3)
    assert judge(EVENTS, [*first, *out(2, 3, 4, 5, token=8)], back, 2) == []
    again = judge(EVENTS, [*first, *out(1, 2, 3, 4, 5, token=8)], back, 2)
    assert "came again" in again[0]


def test_readers_that_are_killed_and_frozen_lose_and_double_nothing(tmp_path: Path) -> None:
    result = torture_readers(("sqlite",), 8, 3, tmp_path)
    assert result.findings == []
    assert result.outcomes[0].outputs >= result.outcomes[0].events
