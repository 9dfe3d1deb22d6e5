"""Member processes seen from a test: what each said, and waiting for it to say something."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tests.support import Process, wait_until

PATIENCE_S = 60.0
"""Processes take their time to start on a busy machine."""


class Said(msgspec.Struct, frozen=True):
    """A line of a worker."""

    at: float
    word: str
    rest: tuple[str, ...]


class Worker:
    """A running ``tests.groups.partitioned.runtime.worker``."""

    def __init__(self, running: Process) -> None:
        self._running = running
        self.said: list[Said] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            while True:
                _, at, word, *rest = self._running.line().split()
                self.said.append(Said(float(at), word, tuple(rest)))
        except (AssertionError, ValueError):
            return  # it has ended

    def find(self, word: str, *rest: object, after: float = 0.0) -> Said | None:
        wanted = tuple(map(str, rest))
        for said in list(self.said):
            if said.word == word and said.rest[: len(wanted)] == wanted and said.at > after:
                return said
        return None

    def wait(self, word: str, *rest: object, after: float = 0.0) -> Said:
        found: Said = wait_until(
            lambda: self.find(word, *rest, after=after),
            f"{word} {rest} from {self.said[-5:]}",
            PATIENCE_S,
        )
        return found

    def all(self, word: str) -> list[Said]:
        return [said for said in list(self.said) if said.word == word]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._running.pid, number)

    def go_on(self) -> None:
        """Let one that holds an event ack it."""
        self._running.tell("")

    def kill(self) -> None:
        self._running.kill()


@contextmanager
def workers(
    url: str, stream: str, group: str, *members: str, ttl_ms: int = 500
) -> Iterator[list[Worker]]:
    """One process for each name; ``m1+hold`` holds its first event."""
    started = []
    try:
        for member in members:
            name, _, hold = member.partition("+")
            args = (url, stream, group, name, str(ttl_ms), *([hold] if hold else []))
            started.append(Worker(Process("tests.groups.partitioned.runtime.worker", *args)))
        yield started
    finally:
        for worker in started:
            worker.kill()
