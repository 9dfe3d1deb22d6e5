"""``--exec``: a command for each event, whose exit status answers it."""

from __future__ import annotations

import asyncio
import base64
import os
import shlex
import shutil
import sys
from contextlib import suppress

from headrace.cli.failures import UsageError
from headrace.groups.consumer import Delivery

STDERR_KEPT_BYTES = 800
STDERR_READ_BYTES = 65_536
STDERR_PATIENCE_S = 1.0


async def _passed_on(said: asyncio.StreamReader | None) -> str:
    """Write what a command says to our own stderr; returns the end of it."""
    assert said is not None
    end = b""
    while chunk := await said.read(STDERR_READ_BYTES):
        sys.stderr.write(chunk.decode(errors="backslashreplace"))
        sys.stderr.flush()
        end = (end + chunk)[-STDERR_KEPT_BYTES:]
    return end.decode(errors="replace").strip()


class EventCommand:
    """What --exec runs for each event; the event is answered by its exit status."""

    def __init__(self, text: str) -> None:
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--exec: {text!r} is no command line: {error}") from None
        if not self._words or "\0" in text:
            raise UsageError("--exec: give a command")
        if shutil.which(self._words[0]) is None:
            raise UsageError(
                f"--exec: there is no command {self._words[0]!r}, or it may not be run"
            )

    async def answer(self, delivery: Delivery) -> None:
        status, said = await self._run(delivery)
        if status == 0:
            await delivery.ack()
        else:
            told = f"{self._words[0]} exited with {status}"
            await delivery.nack(reason=f"{told}:\n{said}" if said else told)

    async def _run(self, delivery: Delivery) -> tuple[int, str]:
        """Its exit status, and the end of what it said on stderr."""
        position = delivery.position
        key = delivery.key or ""
        place = {
            "HEADRACE_SUBJECT": delivery.subject,
            "HEADRACE_KEY_BASE64": base64.b64encode(key.encode()).decode(),
            "HEADRACE_POSITION": f"{position.stream}/{position.segment}:{position.offset}",
            "HEADRACE_TIMESTAMP": delivery.timestamp.isoformat(),
            "HEADRACE_ATTEMPT": str(delivery.attempt),
        }
        if "\0" not in key:  # which an environment cannot hold
            place["HEADRACE_KEY"] = key
        inherited = {name: text for name, text in os.environ.items() if name != "HEADRACE_KEY"}
        try:
            command = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=inherited | place,
            )
        except OSError as error:
            await delivery.nack(delay_ms=0, reason=str(error))
            raise UsageError(f"--exec: cannot run {self._words[0]!r}: {error.strerror}") from error
        heard = asyncio.create_task(_passed_on(command.stderr))
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                assert command.stdin is not None
                command.stdin.write(delivery.value)
                await command.stdin.drain()
                command.stdin.close()
            status = await command.wait()
            # Something that it started may hold its stderr open for ever.
            await asyncio.wait([heard], timeout=STDERR_PATIENCE_S)
            return status, heard.result() if heard.done() else ""
        finally:
            heard.cancel()
            if command.returncode is None:
                command.kill()  # its event goes to somebody else
