"""A PostgreSQL server that dies, goes back, fails over and is cut off, under every kind of group.

A program publishes and consumes in five kinds of groups (``tests.catalog.test_postgres_kills``),
while its server, or itself, meets faults.  Then every event is accounted for, by kind of group:
what is in the log and was never acked (*lost*), what was acked twice (*again*), and keys whose
events came in another *order*.  What a standby had not got when it took over may be gone, and acks
that it had not got may be given again; nothing else is excused.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import msgspec
from rich.console import Console
from rich.table import Table

from tests.catalog.test_postgres_kills import KEYS, KINDS, PUBLISHED, STEP, Life, make, stored
from tests.postgres_server import PostgresMachine, Wire, caught_up
from tests.support import wait_until

FAULTS = (
    "server and program killed",
    "server killed",
    "program frozen",
    "cut off",
    "failed over, synchronous",
    "went back",
)
BACK_S = 60.0
"""Within this a program publishes and consumes again; the longest stop is reported."""


class Said(msgspec.Struct, frozen=True):
    """Something that was answered."""

    at_s: float
    what: str
    number: int


class Program:
    """One life of the program, and what it said when."""

    def __init__(self, url: str, first: int) -> None:
        self.said: list[Said] = []
        command = [sys.executable, "-m", "tests.catalog.test_postgres_kills"]
        self._process = subprocess.Popen(
            [*command, "--live", url, str(first)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.wait_for_all(0.0)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                what, number = line.split()
                self.said.append(Said(time.monotonic(), what, int(number)))

    def wait_for_all(self, since_s: float) -> float:
        """Wait until it has published, and acked in every kind of group; how long that took."""
        wanted = {PUBLISHED, *KINDS}

        def heard() -> bool:
            if self._process.poll() is not None:
                raise AssertionError("the program ended")
            return wanted <= {each.what for each in list(self.said) if each.at_s > since_s}

        wait_until(heard, "everything goes on", BACK_S)
        return time.monotonic() - since_s

    def freeze(self, seconds: float) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class GroupVerdict(msgspec.Struct, frozen=True):
    """What became of the events in one kind of group."""

    kind: str
    acked: int
    lost: int
    again: int
    order: int
    """Keys whose events came in another order."""


class ServersResult(msgspec.Struct, frozen=True):
    """What was done, and what came of it."""

    seed: int
    faults: dict[str, int]
    longest_s: dict[str, float]
    """From the end of a fault until all goes on, at most."""
    published: int
    published_lost: int
    groups: tuple[GroupVerdict, ...]

    @property
    def findings(self) -> int:
        groups = sum(each.lost + each.again + each.order for each in self.groups)
        return self.published_lost + groups


class _Ordeal:
    def __init__(self, seed: int, stack: ExitStack) -> None:
        self._rng = random.Random(seed)
        self._stack = stack
        self.primary = self._started(PostgresMachine()).create(wal_level="replica")
        self.said: list[Said] = []
        self.excused: set[int] = set()
        """Of these a standby that took over may know nothing, or not that they were acked."""
        self.lives = 0
        self.kills = 0
        self.longest_s: dict[str, float] = {}

    def _started(self, machine: PostgresMachine) -> PostgresMachine:
        self._stack.callback(machine.remove)
        return machine

    def _wire(self, machine: PostgresMachine) -> Wire:
        wire = Wire(machine.port)
        self._stack.callback(wire.close)
        return wire

    def round(self, fault: str) -> None:
        """One life, in which one fault strikes."""
        standby = None
        if fault in ("failed over, synchronous", "went back"):
            standby = self._started(self.primary.standby())
        wires = [self._wire(machine) for machine in (self.primary, standby) if machine is not None]
        hosts = ",".join(f"127.0.0.1:{wire.port}" for wire in wires)
        settings = "target_session_attrs=read-write&connect_timeout=2"
        url = f"postgresql://postgres@{hosts}/postgres?{settings}"
        program = Program(url, self.lives * STEP)
        self.lives += 1
        try:
            time.sleep(self._rng.uniform(0.1, 1.5))
            self._strike(fault, program, wires, standby)
            if fault != "server and program killed":
                took_s = program.wait_for_all(time.monotonic())
                self.longest_s[fault] = max(took_s, self.longest_s.get(fault, 0.0))
        finally:
            program.kill()
            self.kills += 1
            self.said += program.said

    def _strike(
        self, fault: str, program: Program, wires: list[Wire], standby: PostgresMachine | None
    ) -> None:
        match fault:
            case "server and program killed":
                ends: list[Callable[[], None]] = [self.primary.kill, program.kill]
                self._rng.shuffle(ends)
                for end in ends:
                    end()
                self.primary.start()
            case "server killed":
                self.primary.kill()
                self.primary.start()
            case "program frozen":
                program.freeze(self._rng.uniform(0.5, 8.0))
            case "cut off":
                wires[0].cut = True
                time.sleep(self._rng.uniform(0.5, 8.0))
                wires[0].cut = False
            case _:
                assert standby is not None
                self._fail_over(fault, program, standby)

    def _fail_over(self, fault: str, program: Program, standby: PostgresMachine) -> None:
        old = self.primary
        wait_until(lambda: caught_up(old), "the standby", 30)
        if fault == "went back":
            standby.stop()
            stopped_s = time.monotonic() - 1.0  # what was on its way then may be gone, too
            time.sleep(self._rng.uniform(0.2, 1.5))
            old.kill()
            standby.start()
            standby.promote()
            self.excused |= {each.number for each in list(program.said) if each.at_s > stopped_s}
        else:
            old.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            old.execute("SELECT pg_reload_conf()")
            time.sleep(1.0)  # from here on a commit waits for the standby
            old.kill()
            standby.promote()
        self.primary = standby
        # It has the settings of the one that it was copied from.
        standby.execute("ALTER SYSTEM RESET synchronous_standby_names")
        standby.execute("SELECT pg_reload_conf()")

    def verdict(self, seed: int, faults: list[str]) -> ServersResult:
        """Consume what is left, and account for everything."""
        last = Life(self.primary.url, self.lives * STEP, lambda *_, **__: None)
        asyncio.run(last.live(ends=True))
        there = {*asyncio.run(stored(self.primary.url))}
        published = {each.number for each in self.said if each.what == PUBLISHED}
        return ServersResult(
            seed=seed,
            faults=dict(Counter(faults)),
            longest_s=self.longest_s,
            published=len(published),
            published_lost=len(published - there - self.excused),
            groups=tuple(self._of(kind, last.acked[kind], there) for kind in KINDS),
        )

    def _of(self, kind: str, acked_last: Counter[int], there: set[int]) -> GroupVerdict:
        return account(kind, self.said, acked_last, there, self.excused, kills=self.kills)


def account(
    kind: str,
    said: Sequence[Said],
    acked_last: Counter[int],
    there: set[int],
    excused: set[int],
    *,
    kills: int,
) -> GroupVerdict:
    """The verdict on one kind of group, of what was said and what the last program acked."""
    inorder = [each.number for each in said if each.what == kind] + list(acked_last)
    counts = Counter(each.number for each in said if each.what == kind) + acked_last
    # A program that is killed may have stored one ack of each kind, and not said so.
    missing = len(there - {*counts})
    firsts = list(dict.fromkeys(inorder))
    torn = sum(
        (mine := [n for n in firsts if n % KEYS == key]) != sorted(mine) for key in range(KEYS)
    )
    return GroupVerdict(
        kind=kind,
        acked=len(counts),
        lost=max(0, missing - kills),
        again=sum(count > 1 and n not in excused for n, count in counts.items()),
        order=torn,
    )


def torture_servers(
    faults: int, seed: int, tell: Callable[[str], None] = lambda _: None
) -> ServersResult:
    """Strike this many times, each kind of fault in turn and then at random."""
    rng = random.Random(seed)
    plan = [*rng.sample(FAULTS, len(FAULTS)), *rng.choices(FAULTS, k=max(0, faults))][:faults]
    return endure(plan, seed, tell)


def endure(
    plan: list[str], seed: int, tell: Callable[[str], None] = lambda _: None
) -> ServersResult:
    """Let these faults strike."""
    with ExitStack() as stack:
        ordeal = _Ordeal(seed, stack)
        asyncio.run(make(ordeal.primary.url))
        for fault in plan:
            tell(fault)
            ordeal.round(fault)
        return ordeal.verdict(seed, plan)


def show(console: Console, result: ServersResult) -> None:
    """What was done and what came of it, as two tables."""
    faults = Table("server", "times", "longest stop")
    for fault, count in result.faults.items():
        stop = result.longest_s.get(fault)
        faults.add_row(fault, str(count), "" if stop is None else f"{stop:.1f} s")
    console.print(faults)
    groups = Table("kind of group", "acked", "lost", "again", "order")
    for each in result.groups:
        counts = each.acked, each.lost, each.again, each.order
        groups.add_row(each.kind, *(f"{count:,}" for count in counts))
    console.print(groups)
    console.print(f"{result.published:,} published, {result.published_lost:,} of them lost")


def main(arguments: list[str]) -> int:
    """``python -m tests.torture.server_faults FAULTS [SEED]``"""
    seed = int(arguments[1]) if len(arguments) > 1 else random.SystemRandom().randrange(1 << 30)
    found = torture_servers(int(arguments[0]), seed, lambda fault: print(fault, flush=True))
    show(Console(), found)
    return 1 if found.findings else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
