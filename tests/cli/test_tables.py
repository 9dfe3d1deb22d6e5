"""A table of thousands of rows is shown at once, and says the same."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from headrace.catalog.streams import Limits, Segment, Stream, StreamConfig
from headrace.cli import screens, tables


def streams(count: int) -> list[Stream]:
    return [
        Stream(
            n,
            f"s{n}",
            StreamConfig(subjects=(f"[s{n}].>",), retention=Limits()),
            0,
            (Segment(n, 0, 0, 1 << 32, 1000 + n, 0, 100, 0, 5_000_000, 0, None),),
        )
        for n in range(count)
    ]


def shown(count: int) -> list[str]:
    file = io.StringIO()
    tables.show(Console(file=file, width=200), screens.streams_table(streams(count)))
    return file.getvalue().splitlines()


def test_a_long_table_says_what_a_short_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    short = [line.split() for line in shown(30)]
    assert len(short) == 31
    monkeypatch.setattr(tables, "ROWS_MANY", 1)
    assert [line.split() for line in shown(30)] == short


def test_ten_thousand_rows_take_no_time_to_speak_of() -> None:
    began_s = time.thread_time()
    assert len(shown(10_000)) == 10_001
    assert time.thread_time() - began_s < 2, "rich alone takes five seconds"
