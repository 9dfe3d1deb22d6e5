"""What tests of several layers share: waiting for conditions, and helpers in real processes."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCES = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
"""What other processes import from: this tree, whatever is installed."""
PATIENCE_S = 20.0
LOOP_PATIENCE_S = 50.0
"""By the clock of an event loop, which a test may drive."""


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Return the condition's value once it is true; fail loudly when it never is."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}")
        time.sleep(0.002)


async def until(
    condition: Callable[[], Any], what: str = "a condition", timeout_s: float = LOOP_PATIENCE_S
) -> Any:
    """Wait on the event loop, by its clock, for a condition or what it is a coroutine of; return
    its value, and fail loudly when it never comes true."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if loop.time() > deadline_s:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}")
        await asyncio.sleep(0.005)


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that another process still writes, but for one half-written."""
    return path.read_text().rpartition("\n")[0].splitlines()


@contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """Programs that are started here hear Ctrl-C, as those do that a person starts.

    A background job and ``nohup`` ignore it, and a program that is started by one that does keeps
    ignoring it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def steps(work: Callable[[], object]) -> int:
    """How many steps of Python (bytecodes) something takes, whatever else the machine does."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        nonlocal count
        del event, arg
        frame.f_trace_opcodes = True
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


class Process:
    """A Python program in another process that talks in lines."""

    def __init__(self, module: str, *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": SOURCES},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def line(self) -> str:
        """The next line it prints; an error when it has ended."""
        assert self._process.stdout is not None
        found = self._process.stdout.readline()
        if not found:
            raise AssertionError(f"the process ended with {self._process.wait()}")
        return found.strip()

    def tell(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        """Wait for its end, which has to be a good one."""
        assert self._process.wait(PATIENCE_S) == 0

    def wait(self, timeout_s: float) -> int:
        """Wait for its end, and return how it ended."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def signal_session(leader: int, number: int) -> int:
    """Signal all processes of a session, and how many they are; a session is what one process
    has started, also what has a process group of its own since, as the daemons of Spark have."""
    found = 0
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        with suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                os.kill(pid, number)
                found += 1
    return found


@contextmanager
def process(module: str, *args: str) -> Iterator[Process]:
    """Run ``python -m module args``; it is gone when the block ends."""
    running = Process(module, *args)
    try:
        yield running
    finally:
        running.kill()


def close_what_spark_kept() -> None:
    """Close the logs that sources and sinks have opened in this process.

    They stay open as long as the process does, and those of a catalog that is gone look for it
    again and again, also while other tests run.
    """
    connection = sys.modules.get("headrace.spark.connection")
    if connection is not None:
        for _, log in connection._opened.values():
            log.catalog.close()
        connection._opened.clear()
