"""Members of the tour's groups, each in a process of its own.

An instance is told what to do in a line of JSON on its standard input, and leaves when that ends:
with the tour, however the tour ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from headrace.cli.demo.acts import Stage
from headrace.cli.demo.notes import count
from headrace.cli.failures import CheckFailedError
from headrace.cli.options import Options

PATIENCE_S = 120.0
LOOK_S = 0.02


class Orders(msgspec.Struct, frozen=True):
    """What an instance is told."""

    options: Options
    """Those of the tour's log."""
    member: str
    instance: str


class Crew:
    """The processes of an act; `module` has a ``main`` that calls :func:`serve`."""

    def __init__(self, stage: Stage, module: str) -> None:
        self._stage = stage
        self._module = module
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._killed: set[str] = set()

    async def __aenter__(self) -> Crew:
        return self

    async def __aexit__(self, *_: object) -> None:
        for name, process in self._running.items():
            # A killed process may be a zombie: to signal it would reap it behind the event loop's
            # back.
            if process.returncode is None and name not in self._killed:
                process.kill()
            await process.wait()

    async def start(self, member: str, instance: str | None = None) -> None:
        """An instance of a member; without a name of its own it is numbered."""
        if instance is None:
            instance = f"{member}-{1 + sum(name.startswith(member) for name in self._running)}"
        orders = Orders(self._stage.options, member, instance)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            f"from {self._module} import main; main()",
            stdin=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        self._running[instance] = process

    def name_of(self, pid: str) -> str:
        """Who a process is."""
        return next(name for name, each in self._running.items() if str(each.pid) == pid)

    def kill(self, name: str) -> None:
        """SIGKILL: it can neither finish nor say good-bye."""
        self._killed.add(name)
        self._running[name].send_signal(signal.SIGKILL)

    async def watch(self, doing: str, stream: str, total: int) -> AsyncIterator[int]:
        """How many flights are noted in `stream` by now; to be left when all is well."""
        deadline = time.monotonic() + PATIENCE_S
        with self._stage.progress(doing) as bar:
            task = bar.add_task("", total=total)
            while True:
                noted = await count(self._stage, stream)
                bar.update(task, completed=noted)
                yield noted
                self._check()
                if time.monotonic() > deadline:
                    raise CheckFailedError(f"{noted:,} of {total:,} flights in {PATIENCE_S:.0f} s")
                await asyncio.sleep(LOOK_S)

    def _check(self) -> None:
        """Raise if a process has ended that was not killed."""
        for name, process in self._running.items():
            if process.returncode is not None and name not in self._killed:
                raise CheckFailedError(f"{name} ended with {process.returncode}")


def serve(work: Callable[[Orders], Coroutine[Any, Any, None]]) -> None:
    """Be an instance, until standard input ends."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)

    def leave_with_stdin() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=leave_with_stdin, daemon=True).start()

    asyncio.run(work(orders))
