"""A named subscription whose program is frozen at any place of its life, and replaced meanwhile.

Every program has an event loop of its own, and one clock for all of them.  A program is frozen
after so many turns of its loop: before, between and after all of its commits, in its opening, with
an epoch in hand, or with an ack that was committed and not answered.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import headrace
from headrace.epochs.runtime.acks import NamedHold
from headrace.testing import DrivenLoop, run
from tests.epochs.runtime.test_subscription import stream
from tests.torture.epoch_account import judge_acks
from tests.torture.epoch_worker import LEASE_MS, Seen, Work, digest, endure

EPOCHS = 2
DIGESTS = {time: digest([str(time).encode()]) for time in range(EPOCHS)}
LEASES = 1.2
"""For how many leases a program is frozen."""


class Program:
    """One program that acks every epoch, and journals what it was given and what it acked."""

    def __init__(self, folder: Path, life: str) -> None:
        self.loop = DrivenLoop(seed=hash(life) & 0xFFFF)
        self._main = self.loop.create_task(self._run(folder, life))
        self._started: asyncio.Future[None] = self.loop.create_future()
        self.loop.run_to_rest()
        self._started.set_result(None)

    async def _run(self, folder: Path, life: str) -> None:
        async with headrace.open(folder / "log", housekeeping=False) as hr:
            work = Work(hr, folder, life)
            await self._started
            await endure(work.ack, "a1", work.stop)

    def turns(self, limit: int | None = None) -> int:
        """Let it run until it rests, or for so many turns; returns how many it took."""
        taken = 0
        while taken != limit and not self.rests():
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            taken += 1
        return taken

    def rests(self) -> bool:
        """Whether nothing can run before time moves on."""
        scheduled: list[asyncio.TimerHandle] = self.loop._scheduled  # type: ignore[attr-defined]
        due = [handle.when() for handle in scheduled if not handle.cancelled()]
        ready: object = self.loop._ready  # type: ignore[attr-defined]
        return not ready and (not due or min(due) > self.loop.time())

    def end(self) -> None:
        self._main.cancel()
        self.loop.run_to_rest()
        self.loop.close()


class World:
    """Programs in one time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.programs: list[Program] = []

    def program(self) -> Program:
        made = Program(self._folder, str(len(self.programs)))
        self.programs.append(made)
        return made

    def pass_time(self, awake: Sequence[Program], seconds: float) -> None:
        """Those that are awake do what is due; the others find out later how late it is."""
        until_ns = max(program.loop.now_ns for program in self.programs) + int(seconds * 1e9)
        while True:
            due = [(each.loop.run_to_rest(), each) for each in awake]
            next_ns = min((at for at, _ in due if at is not None), default=until_ns)
            for each in awake:
                each.loop.now_ns = min(next_ns, until_ns)
            if next_ns >= until_ns:
                break
        for each in self.programs:
            each.loop.now_ns = until_ns

    def seen(self) -> list[Seen]:
        lines = [
            line for path in self._folder.glob("ack-a1.*") for line in path.read_bytes().split()
        ]
        return sorted(
            (msgspec.json.decode(line, type=Seen) for line in lines), key=lambda each: each.at_ns
        )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with some whole epochs, to be copied."""
    folder = tmp_path_factory.mktemp("published")

    async def publish() -> None:
        async with headrace.open(folder / "log", housekeeping=False) as hr:
            writer = await stream(hr)
            for time in range(EPOCHS):
                writer.publish("eu", [(time, str(time).encode())], advance_to=time + 1)

    run(publish())
    return folder


@contextmanager
def world(published: Path, folder: Path) -> Iterator[World]:
    shutil.copytree(published, folder)
    made = World(folder)
    try:
        yield made
    finally:
        for program in made.programs:
            program.end()


def ordeal(made: World, freezes: Sequence[int]) -> list[Seen]:
    """Each program is frozen after so many turns; one more does the rest; then all go on."""
    frozen = []
    for turns in freezes:
        program = made.program()
        program.turns(turns)
        frozen.append(program)
        made.pass_time((), LEASES * LEASE_MS / 1000)
    last = made.program()
    made.pass_time((last,), 0.01)
    for program in reversed(frozen):
        program.turns()
    made.pass_time(made.programs, 0.1)
    return made.seen()


def came_again(seen: Sequence[Seen]) -> list[int]:
    """Epochs that somebody was given when they had been acked, by the clock."""
    acked: set[int] = set()
    found = []
    for each in seen:
        ((time, _),) = each.epochs
        if each.kind == "acked":
            acked.add(time)
        elif time in acked:
            found.append(time)
    return found


def turns_of_a_life(published: Path, folder: Path) -> int:
    with world(published, folder) as made:
        return made.program().turns()


def test_an_acked_epoch_never_comes_again_wherever_its_program_was_frozen(
    published: Path, tmp_path: Path
) -> None:
    for at in range(turns_of_a_life(published, tmp_path / "calm") + 1):
        with world(published, tmp_path / str(at)) as made:
            seen = ordeal(made, [at])
        assert judge_acks("ack", seen, DIGESTS) == [], at
        assert came_again(seen) == [], at


def test_so_it_is_when_its_successor_is_frozen_too(published: Path, tmp_path: Path) -> None:
    chance, turns = random.Random(1), turns_of_a_life(published, tmp_path / "calm")
    for number in range(6):
        places = [chance.randint(0, turns) for _ in range(2)]
        with world(published, tmp_path / str(number)) as made:
            seen = ordeal(made, places)
        assert judge_acks("ack", seen, DIGESTS) == [], places
        assert came_again(seen) == [], places


def test_without_a_look_at_its_lease_it_would_give_what_was_acked(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot ack that again; the token sees to it, and the account judges by it."""

    async def held(hold: NamedHold) -> None:
        pass

    monkeypatch.setattr(NamedHold, "check_held", held)
    monkeypatch.setattr(NamedHold, "lost", False)
    late = []
    for at in range(turns_of_a_life(published, tmp_path / "calm"), 0, -4):
        with world(published, tmp_path / str(at)) as made:
            seen = ordeal(made, [at])
        assert judge_acks("ack", seen, DIGESTS) == [], at
        late += came_again(seen)
    assert late
