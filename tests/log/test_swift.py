"""When loads are left to a thread."""

from __future__ import annotations

import pytest

from headrace.catalog import Catalog
from headrace.log import swift
from headrace.log.swift import SWIFT_S, Swift


class Clock:
    """What ``time.perf_counter`` tells, in the place of ``time``."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def load(self, judge: Swift, took_s: float) -> None:
        def read() -> None:
            self.now_s += took_s

        judge.load(read)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(swift, "time", clock)
    return clock


@pytest.mark.parametrize("took_s", [1.5 * SWIFT_S, 100 * SWIFT_S])
def test_a_slow_disk_is_for_a_thread(catalog: Catalog, clock: Clock, took_s: float) -> None:
    judge = Swift(catalog)
    for _ in range(10):
        clock.load(judge, took_s)
    assert not judge.on


def test_a_disk_that_is_slow_every_other_time_is_too(catalog: Catalog, clock: Clock) -> None:
    judge = Swift(catalog)
    for _ in range(10):
        clock.load(judge, SWIFT_S / 2)
        clock.load(judge, 100 * SWIFT_S)
    assert not judge.on


def test_one_load_that_was_held_up_changes_nothing(catalog: Catalog, clock: Clock) -> None:
    judge = Swift(catalog)
    for _ in range(5):
        for _ in range(10):
            clock.load(judge, SWIFT_S / 2)
        clock.load(judge, 100 * SWIFT_S)
    assert judge.on == catalog.quick
