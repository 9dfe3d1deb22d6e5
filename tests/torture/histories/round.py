"""One round: processes are started, killed, frozen and restarted, and their histories judged.

A round is a process of its own, ``python -m tests.torture.histories.round``, that forks the others
off before it opens anything itself: that costs a fraction of starting each from scratch.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import msgspec

import headrace
import headrace.sync
from tests.torture.account import Finding
from tests.torture.child import Failed
from tests.torture.histories import administrator, checker, consumer, publisher
from tests.torture.histories.checker import Copy, Figures, Stored
from tests.torture.histories.records import GROUP, IN, OUT, SIDE, Spot, read_journal

Kind = Literal["shared", "static"]
Main = Callable[[str, str, str, Path, str], Awaitable[None]]

PUBLISHERS = 2
CONSUMERS: dict[Kind, int] = {"shared": 3, "static": 4}
FAULT_EVERY_S = (0.05, 0.4)
FREEZE_S = (0.3, 2.0)
END_S = 60.0
"""How long processes may take to end, and consumers to get on."""


class Outcome(msgspec.Struct):
    """What came of a round."""

    kind: Kind
    seed: int
    findings: list[Finding] = msgspec.field(default_factory=list)
    figures: Figures = Figures()
    faults: dict[str, int] = msgspec.field(default_factory=dict)
    seconds: float = 0.0


class Slot:
    """A place for one process after another."""

    def __init__(self, name: str, main: Main, argument: str) -> None:
        self.name = name
        self.main = main
        self.argument = argument
        self.incarnation = 0
        self.pid = 0
        self.wakes_s = 0.0
        self.ended: int | None = 0

    @property
    def process(self) -> str:
        return f"{self.name}.{self.incarnation}"


class Round:
    def __init__(self, folder: Path, kind: Kind, seed: int, seconds: float) -> None:
        self._folder = folder
        self._url = str(folder / "data")
        self._kind: Kind = kind
        self._seed = seed
        self._seconds = seconds
        self._rng = random.Random(f"{kind} {seed}")
        self._faults: Counter[str] = Counter()
        consume = consumer.run_shared if kind == "shared" else consumer.run_static
        self._publishers = [
            Slot(f"p{number}", publisher.run, f"p{number}") for number in range(PUBLISHERS)
        ]
        self._consumers = [
            Slot(f"c{number}", consume, f"c{number}") for number in range(CONSUMERS[kind])
        ]
        self._administrator = Slot("a0", administrator.run, kind)

    @property
    def _slots(self) -> list[Slot]:
        return [*self._publishers, *self._consumers, self._administrator]

    def run(self) -> Outcome:
        outcome = Outcome(self._kind, self._seed)
        began_s = time.monotonic()
        try:
            self._prepare()
            for slot in self._slots:
                self._start(slot)
            self._torture()
            self._settle()
            journals = {path.stem: read_journal(path) for path in self._folder.glob("*.journal")}
            outcome.findings, outcome.figures = checker.check(journals, self._log)
        except Failed as failed:
            outcome.findings.append(failed.finding)
        finally:
            for slot in self._slots:
                if slot.ended is None:
                    self._kill(slot)
        outcome.faults = dict(self._faults)
        outcome.seconds = time.monotonic() - began_s
        return outcome

    # -- processes ----------------------------------------------------------------------

    def _prepare(self) -> None:
        async def create() -> None:
            async with headrace.open(self._url, housekeeping=False) as hr:
                partitions = 4 if self._kind == "static" else 0
                segments = 1 if self._kind == "static" else 2
                await hr.create_stream(IN, [f"{IN}.>"], partitions=partitions, segments=segments)
                await hr.create_stream(SIDE, [f"{SIDE}.>"], segments=2)
                await hr.create_stream(OUT, [f"{OUT}.>"])
                if self._kind == "static":
                    members = ["m0", "m1"]
                    await hr.groups.create_static(IN, GROUP, max_members=4, members=members)

        slot = Slot("create", lambda *_: create(), "")
        self._start(slot)
        self._await([slot])

    def _start(self, slot: Slot) -> None:
        slot.incarnation += 1
        slot.wakes_s, slot.ended = 0.0, None
        seed = f"{self._seed} {self._kind} {slot.process}"
        slot.pid = os.fork()
        if slot.pid:
            return
        status = 1
        try:
            said = os.open(self._folder / f"{slot.process}.err", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(said, 1)
            os.dup2(said, 2)
            asyncio.run(
                _main(slot.main(self._url, slot.argument, slot.process, self._folder, seed))
            )
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _poll(self, slot: Slot) -> int | None:
        if slot.ended is None:
            pid, status = os.waitpid(slot.pid, os.WNOHANG)
            if pid:
                slot.ended = os.waitstatus_to_exitcode(status)
        return slot.ended

    def _kill(self, slot: Slot) -> None:
        if self._poll(slot) is None:
            os.kill(slot.pid, signal.SIGKILL)
            _, status = os.waitpid(slot.pid, 0)
            slot.ended = os.waitstatus_to_exitcode(status)

    def _check(self) -> None:
        for slot in self._slots:
            if self._poll(slot):
                raise Failed("process failed", self._last_words(slot))

    def _last_words(self, slot: Slot) -> str:
        said = (self._folder / f"{slot.process}.err").read_text().strip()
        return f"{slot.process} ended with {slot.ended}: {said[-1500:]}"

    # -- faults -------------------------------------------------------------------------

    def _torture(self) -> None:
        ends_s = time.monotonic() + self._seconds
        while time.monotonic() < ends_s:
            # How long it is quiet is part of the plan; this is no waiting for luck.
            time.sleep(self._rng.uniform(*FAULT_EVERY_S))
            self._check()
            self._wake()
            awake = [slot for slot in self._slots if not slot.wakes_s]
            if not awake:
                continue
            victim = self._rng.choice(awake)
            frozen = sum(bool(slot.wakes_s) for slot in self._slots)
            if frozen < 2 and self._rng.random() < 0.45:
                self._faults["frozen"] += 1
                os.kill(victim.pid, signal.SIGSTOP)
                victim.wakes_s = time.monotonic() + self._rng.uniform(*FREEZE_S)
            else:
                self._faults["killed"] += 1
                self._kill(victim)
                self._start(victim)
        self._wake(all_of_them=True)

    def _wake(self, *, all_of_them: bool = False) -> None:
        for slot in self._slots:
            if slot.wakes_s and (all_of_them or slot.wakes_s < time.monotonic()):
                slot.wakes_s = 0.0
                if not all_of_them and self._rng.random() < 0.3:
                    self._faults["killed while frozen"] += 1
                    self._kill(slot)
                    self._start(slot)
                else:
                    os.kill(slot.pid, signal.SIGCONT)

    # -- the end ------------------------------------------------------------------------

    def _settle(self) -> None:
        (self._folder / "calm").touch()
        self._await([*self._publishers, self._administrator])
        with headrace.sync.open(self._url, housekeeping=False) as hr:
            self._consume_all(hr)
            (self._folder / "over").touch()
            self._await(self._consumers)
            self._log = {stream: _copy(hr, stream) for stream in (IN, SIDE, OUT)}

    def _await(self, slots: list[Slot]) -> None:
        deadline_s = time.monotonic() + END_S
        while any(self._poll(slot) is None for slot in slots):
            if time.monotonic() > deadline_s:
                stuck = [slot.process for slot in slots if slot.ended is None]
                raise Failed("stuck", f"{stuck} do not end")
            time.sleep(0.01)
        for slot in slots:
            if slot.ended:
                raise Failed("process failed", self._last_words(slot))

    def _consume_all(self, hr: headrace.sync.Headrace) -> None:
        """Wait until the group has nothing left; as long as it gets on there is patience."""
        before, deadline_s = -1, 0.0
        while left := self._left(hr):
            self._check()
            if left != before:
                before, deadline_s = left, time.monotonic() + END_S
            if time.monotonic() > deadline_s:
                raise Failed("stuck", f"{left} events are left: {self._explain(hr)}")
            time.sleep(0.02)

    def _left(self, hr: headrace.sync.Headrace) -> int:
        if self._kind == "static":
            return hr.groups.lag(IN, GROUP).events
        found = [info for info in hr.shared_groups.list() if info.properties.group == GROUP]
        if not found:
            return 1  # nobody has subscribed yet
        return sum(info.lag_events for info in found)

    def _explain(self, hr: headrace.sync.Headrace) -> str:
        if self._kind == "static":
            return f"{hr.groups.lag(IN, GROUP)} {hr.groups.active(IN, GROUP)}"
        return str(hr.shared_groups.list())


async def _main(work: Awaitable[None]) -> None:
    await work


def _copy(hr: headrace.sync.Headrace, stream: str) -> Copy:
    events = []
    for batch in hr.read(stream):
        columns = (batch.column(name).to_pylist() for name in ("segment", "offset", "key", "value"))
        for segment, offset, key, value in zip(*columns, strict=True):
            events.append(Stored(Spot(stream, segment, offset), key, value.decode().strip()))
    found = next(one for one in hr.streams() if one.name == stream)
    return Copy(events, {s.number: (s.tail, s.head) for s in found.segments})


def main(folder: str, kind: Kind, seed: str, seconds: str) -> None:
    outcome = Round(Path(folder), kind, int(seed), float(seconds)).run()
    sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
