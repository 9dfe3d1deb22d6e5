"""Shared groups under torture: members and leaders killed, frozen and cut off at random.

``python -m tests.torture.shared_groups [--catalog URL] [--faults N] [--seed S]``.  Members are real
processes on a real catalog; each writes down what it was given (+) and what it was told is acked
(!), with the time of a clock that all of them share.  In the end the faults stop and every event
is accounted for:

* each was delivered, and the group has nothing left to do;
* no ack was told twice: what is acked does not come again, but to a process that was frozen and
  does not know yet that it owns nothing (its ack is refused);
* events of one key were first delivered in their order.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import msgspec

import headrace
import headrace.sync
from headrace.groups.shared.admin import Groups
from tests.groups.shared.runtime.support import open_log
from tests.support import Process, process, wait_until

TEXT = "$share/g/orders.>"
KEYS = 40
MEMBERS = ("a", "b", "c", "d")
FREEZE_S = (0.2, 5.0)
PAUSE_S = (0.1, 0.6)
FEED_S = 0.1
SETTLE_S = 120.0


class Report(msgspec.Struct, frozen=True):
    """What happened, and what was found."""

    faults: dict[str, int]
    events: int
    deliveries: int
    repeated: int
    late: int
    """Deliveries after the ack, in processes that had been frozen; none of them counted."""
    leaders: int
    wrong: tuple[str, ...]


class Ordeal:
    """One run."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self._url = url
        self._folder = folder
        self._random = random.Random(seed)
        self._members: dict[str, Process] = {}
        self._stacks: dict[str, ExitStack] = {}
        self._frozen: set[str] = set()
        self._published: list[bytes] = []
        self._stop = threading.Event()
        self.faults: Counter[str] = Counter()

    def run(self, faults: int) -> Report:
        """Torture, then account."""
        asyncio.run(self._prepare())
        feeder = threading.Thread(target=self._feed)
        try:
            for name in MEMBERS:
                self._start(name)
            feeder.start()
            while sum(self.faults.values()) < faults:
                self._strike()
                # How long a fault lasts is part of it; this is no waiting for luck.
                self._stop.wait(self._random.uniform(*PAUSE_S))
            self._stop.set()
            feeder.join()
            with headrace.sync.open(self._url, housekeeping=False) as hr:
                groups = Groups(hr.client.log)
                try:
                    wait_until(
                        lambda: groups.get("g").lag_events == 0, "every event to be acked", SETTLE_S
                    )
                except AssertionError as error:
                    left = groups.get("g")
                    raise AssertionError(
                        f"{error}; {left.lag_events} are left, led by {left.leader}, "
                        f"members {left.members}, ended {self._ended()}"
                    ) from error
                token = groups.get("g").leader_token
        finally:
            self._stop.set()
            for stack in self._stacks.values():
                stack.close()
        return self._account(token)

    async def _prepare(self) -> None:
        async with open_log(self._url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=6)

    def _start(self, name: str) -> None:
        stack = self._stacks[name] = ExitStack()
        out = str(self._folder / name)
        member = stack.enter_context(
            process("tests.groups.shared.runtime.member", self._url, name, out, TEXT)
        )
        assert member.line() == "ready"
        self._members[name] = member

    def _feed(self) -> None:
        number = 0
        with headrace.sync.open(self._url, housekeeping=False) as hr:
            while not self._stop.wait(FEED_S):
                values = [b"%d-%d" % (n % KEYS, n) for n in range(number, number + 5)]
                number += 5
                hr.append(
                    "orders",
                    [
                        headrace.Event(
                            subject="orders.n", value=value, key=value.partition(b"-")[0].decode()
                        )
                        for value in values
                    ],
                )
                self._published += values

    def _strike(self) -> None:
        name = self._random.choice(MEMBERS)
        member = self._members[name]
        kind = self._random.choice(("kill", "freeze", "freeze", "cut", "cut"))
        self.faults[kind] += 1
        match kind:
            case "kill":
                self._stacks[name].close()
                self._start(name)
            case "freeze":
                self._frozen.add(name)
                os.kill(member.pid, signal.SIGSTOP)
                self._stop.wait(self._random.uniform(*FREEZE_S))
                os.kill(member.pid, signal.SIGCONT)
            case "cut":
                member.tell("cut")
                assert member.line() == "cut"

    # --- accounting ---

    def _lines(self) -> list[tuple[int, str, bytes, bytes]]:
        found = []
        for name in MEMBERS:
            for line in (self._folder / name).read_bytes().splitlines():
                mark, at, value = (*line.split(b" ", 2), b"", b"")[:3]
                if value:
                    found.append((int(at), name, mark, value))
        return sorted(found)

    def _ended(self) -> list[str]:
        """What members said that could not go on."""
        return [f"{n}: {v.decode()}" for _, n, mark, v in self._lines() if mark in (b"?", b"~")]

    def _account(self, token: int) -> Report:
        wrong: list[str] = []
        acked: dict[bytes, str] = {}
        first: dict[bytes, list[int]] = {}
        seen: set[bytes] = set()
        deliveries = late = 0
        for _, name, mark, value in self._lines():
            if mark == b"!":
                if value in acked:
                    wrong.append(f"{value!r} was acked by {acked[value]} and by {name}")
                acked[value] = name
            elif mark == b"+":
                deliveries += 1
                if value in acked:
                    late += 1
                    if name not in self._frozen:
                        wrong.append(f"{value!r} came to {name} after {acked[value]} acked it")
                elif value not in seen:
                    seen.add(value)
                    key, _, number = value.partition(b"-")
                    first.setdefault(key, []).append(int(number))
            elif mark == b"?":
                wrong.append(f"{name}: {value.decode()}")
        missing = set(self._published) - seen
        if missing:
            wrong.append(f"{len(missing)} events were never delivered")
        for key, numbers in first.items():
            if numbers != sorted(numbers):
                wrong.append(f"events of key {key!r} came out of order")
        return Report(
            faults=dict(self.faults),
            events=len(self._published),
            deliveries=deliveries,
            repeated=deliveries - len(seen),
            late=late,
            leaders=token,
            wrong=tuple(wrong),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Shared groups under torture.")
    parser.add_argument("--catalog", help="where; else a folder that is gone afterwards")
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        out.mkdir()
        url = given.catalog or str(Path(folder) / "catalog")
        report = Ordeal(url, out, given.seed).run(given.faults)
    print(f"seed {given.seed}: {msgspec.json.encode(report).decode()}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
