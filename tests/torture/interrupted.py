"""A program whose blocking calls are struck by signals that raise, and that goes on after each.

``python -m tests.torture.interrupted CATALOG SEED INTERRUPTS``.  As Ctrl-C in a notebook, a
worker's soft time limit or a SIGTERM handler that raises.  It says on stdout what it was told
(``+ value``: durable) and when it was struck (``!``), and goes on when it hears a line.
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import headrace.sync
from headrace import Event

STREAM = "struck"
STRIKE_S = (0.00003, 0.0015)
OWN_WRITE_S = 5.0
QUIET_PUBLISHES = 3000


class Struck(BaseException):
    """What the handler of the signal raises; like KeyboardInterrupt it is no Exception."""


def strike(*_: Any) -> None:
    raise Struck


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Program:
    def __init__(self, hr: headrace.sync.Headrace, seed: int) -> None:
        self._hr = hr
        self._rng = random.Random(seed)
        self._seed = seed
        self._number = 0
        self._told: list[str] = []

    def run(self, interrupts: int) -> None:
        for _ in range(interrupts):
            self._until_struck()
            for value in self._told:
                say(f"+ {value}")
            self._told.clear()
            say("!")
            sys.stdin.readline()  # meanwhile another process writes
            self._write_again()
        quiet = b"y" * 2000
        for _ in range(QUIET_PUBLISHES if interrupts >= QUIET_PUBLISHES else interrupts):
            self._hr.publish("struck.quiet", quiet)
        say("quiet")

    def _until_struck(self) -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(*STRIKE_S))
            while True:
                self._call()
        except Struck:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _call(self) -> None:
        self._number += 1
        value = f"{self._seed}-{self._number}"
        chance = self._rng.random()
        if chance < 0.05:
            for _ in self._hr.read(STREAM, limit=20):
                pass
            return
        if chance < 0.15:
            self._hr.append(STREAM, [Event(subject="struck.x", value=value.encode())])
        else:
            self._hr.publish("struck.x", value.encode())
        self._told.append(value)

    def _write_again(self) -> None:
        """This program itself must be able to write; else it says so and is of no more use."""
        self._number += 1
        value = f"{self._seed}-{self._number}"
        self._within(lambda: self._hr.publish("struck.x", value.encode()))
        say(f"+ {value}")

    @staticmethod
    def _within(call: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, OWN_WRITE_S)
        try:
            call()
        except Struck:
            say("stuck")
            sys.stdin.readline()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def main(url: str, seed: str, interrupts: str) -> None:
    signal.signal(signal.SIGALRM, strike)
    with headrace.sync.open(url, housekeeping=False) as hr:
        say("ready")
        Program(hr, int(seed)).run(int(interrupts))
    say("closed")


if __name__ == "__main__":
    main(*sys.argv[1:])
