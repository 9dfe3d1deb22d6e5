"""An exception that a signal raises in a blocking call, wherever, leaves the program usable.

The tortures strike at random (``tests.torture.interrupts``).  Here a call is struck at every place
where the interpreter runs handlers of signals: when a function begins, and after each call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import headrace.sync

TRACED = ("headrace/api", "headrace/host", "headrace/catalog", "headrace/log", "/threading.py")


class Struck(BaseException):
    """No Exception, like KeyboardInterrupt."""


class Striker:
    """A profile function that raises at the ``target``-th place of this thread.

    What it raises when a function returns is raised by the call, as with signals: so a ``with``
    whose lock was just taken, or a ``finally`` that is about to begin, is struck as it would be.
    """

    def __init__(self, target: int) -> None:
        self._left = target
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in {"call", "return", "c_return"} or self.where:
            return
        if any(part in frame.f_code.co_filename for part in TRACED):
            self._left -= 1
            if self._left < 0:
                self.where = f"{event} {frame.f_code.co_filename}:{frame.f_lineno}"
                raise Struck


def strike(call: Callable[[], object], target: int) -> str:
    """Where a call was struck; nothing if it has fewer places than that."""
    striker = Striker(target)
    before = sys.getprofile()
    sys.setprofile(striker)
    try:
        call()
    except Struck:
        pass
    finally:
        sys.setprofile(before)
    return striker.where


def read(hr: headrace.sync.Headrace) -> None:
    for _ in hr.read("s", limit=5):
        pass


CALLS: dict[str, Callable[[headrace.sync.Headrace], object]] = {
    "read": read,
    "streams": lambda hr: hr.streams(),
    "publish": lambda hr: hr.publish("s.x", b"struck"),
}


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",  # a callback of the collector was struck
    "ignore:coroutine .* was never awaited:RuntimeWarning",
)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_struck_anywhere_leaves_the_log_open(name: str, tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d", housekeeping=False) as hr:
        hr.create_stream("s", ["s.>"])
        for target in range(10_000):
            where = strike(lambda: CALLS[name](hr), target)
            if not where:
                break
            assert hr.is_running, where
            hr.publish("s.x", b"after")
            assert [s.name for s in hr.streams()] == ["s"], where
        assert target > 10
        after = [v for b in hr.read("s") for v in b.column("value").to_pylist() if v == b"after"]
        assert len(after) == target
    assert not hr.is_running
