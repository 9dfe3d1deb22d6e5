"""Who writes a stream that one region writes: never two at once, and with nothing left behind."""

from __future__ import annotations

import random

import pytest

from headrace.regions.core import writing
from headrace.regions.core.writing import Writing, follow

REGIONS = ("a", "b", "c")


class World:
    """Regions that publish, copy, want to write and read each other, in any order."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.known = {name: Writing("a") for name in REGIONS}
        self.has: dict[str, set[tuple[str, int]]] = {name: set() for name in REGIONS}
        self.log: list[tuple[str, int]] = []
        self.moves = 0

    def writers(self) -> list[str]:
        return [name for name in REGIONS if self.known[name].writer == name]

    def publish(self) -> None:
        for name in self.writers():
            assert self.has[name] == set(self.log), f"{name} writes and lacks what was before"
            event = (name, len(self.log))
            self.log.append(event)
            self.has[name].add(event)

    def copy(self, name: str, other: str) -> None:
        self.has[name] |= {event for event in self.has[other] if event[0] == other}

    def want(self, name: str) -> None:
        if self.known[name].writer != name:
            self.known[name] = self.known[name].want(name)

    def withdraw(self, name: str) -> None:
        self.known[name] = self.known[name].withdraw()

    def read(self, name: str, other: str) -> None:
        complete = self.has[name] >= self.has[other]
        theirs = self.known[other]
        after = follow(name, self.known[name], other, theirs, complete=complete)
        self.moves += after.writer == name != self.known[name].writer
        self.known[name] = after

    def step(self) -> None:
        name, other = self.rng.sample(REGIONS, 2)
        do = self.rng.random()
        if do < 0.25:
            self.publish()
        elif do < 0.5:
            self.copy(name, other)
        elif do < 0.6:
            self.want(name)
        elif do < 0.65:
            self.withdraw(name)
        else:
            self.read(name, other)
        assert len(self.writers()) <= 1, f"{self.writers()} write at the same time"

    def settle(self) -> None:
        for _ in range(4):
            for name in REGIONS:
                for other in REGIONS:
                    if name != other:
                        self.copy(name, other)
                        self.read(name, other)


def run(seed: int) -> World:
    world = World(seed)
    for _ in range(120):
        world.step()
    for name in REGIONS:
        world.withdraw(name)
    world.settle()
    assert len(world.writers()) == 1
    assert len({known.writer for known in world.known.values()}) == 1
    return world


def test_never_two_write_and_in_the_end_one_does() -> None:
    assert sum(run(seed).moves for seed in range(150)) > 100


def test_one_that_begins_before_it_has_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = follow

    def early(me: str, mine: Writing, source: str, theirs: Writing, *, complete: bool) -> Writing:
        return right(me, mine, source, theirs, complete=True)

    monkeypatch.setitem(globals(), "follow", early)
    with pytest.raises(AssertionError, match="lacks what was before"):
        assert [run(seed) for seed in range(150)]


def test_by_force_the_old_writer_stops_when_it_hears() -> None:
    eu, us = Writing("eu"), writing.Writing("eu").force("us")
    assert us.writer == "us"
    assert follow("eu", eu, "us", us, complete=False).writer == "us"
    assert follow("us", us, "eu", eu, complete=True) == us
