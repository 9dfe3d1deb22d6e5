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
from collections.abc import Awaitable, Callable, Mapping

import msgspec

import headrace
from headrace.cli.demo.acts import Stage
from headrace.cli.failures import CheckFailedError


class Orders(msgspec.Struct, frozen=True):
    """What an instance is told."""

    place: str
    store: str | None
    store_options: Mapping[str, str]
    member: str
    instance: str

    def open(self, shared: headrace.SharedOptions | None = None) -> headrace.Headrace:
        """The log of the tour."""
        return headrace.open(
            self.place,
            store=self.store,
            store_options=self.store_options,
            housekeeping=False,
            shared=shared,
        )


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
        stage = self._stage
        orders = Orders(
            place=stage.place,
            store=stage.options.store,
            store_options=stage.options.store_options,
            member=member,
            instance=instance,
        )
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

    def check(self) -> None:
        """Raise if a process has ended that was not killed."""
        for name, process in self._running.items():
            if process.returncode is not None and name not in self._killed:
                raise CheckFailedError(f"{name} ended with {process.returncode}")


def serve(work: Callable[[Orders], Awaitable[None]]) -> None:
    """Be an instance, until standard input ends."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)

    def leave_with_stdin() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=leave_with_stdin, daemon=True).start()

    async def run() -> None:
        await work(orders)

    asyncio.run(run())
