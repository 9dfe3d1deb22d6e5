"""Who reads the log, and when: for what an event loop reads by itself, and what it must not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.log import files
from headrace.log.cursor import Cursor


class Loads:
    """The loads that are read meanwhile: at which turn of the event loop, and by which threads."""

    def __init__(self) -> None:
        self.at_turns: list[int] = []
        self.threads: set[int] = set()
        self._turns = 0

    async def _count_turns(self) -> None:
        while True:
            self._turns += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Loads]:
    loads = Loads()
    real = Cursor.next

    def fetch(cursor: Cursor, end: int, *, brief: bool = False) -> Any:
        loads.at_turns.append(loads._turns)
        loads.threads.add(threading.get_ident())
        return real(cursor, end, brief=brief)

    monkeypatch.setattr(Cursor, "next", fetch)
    others = asyncio.ensure_future(loads._count_turns())
    yield loads
    others.cancel()


def openers(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that open files of the log from now on."""
    found: set[int] = set()
    real = files.open_file

    def open_file(*args: Any) -> Any:
        found.add(threading.get_ident())
        return real(*args)

    monkeypatch.setattr(files, "open_file", open_file)
    return found
