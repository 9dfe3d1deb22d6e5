"""``--exec``: a command for each event, whose exit status answers it."""

from __future__ import annotations

import asyncio
import base64
import os
import shlex
import shutil
from contextlib import suppress

from headrace.cli.failures import UsageError
from headrace.groups.consumer import Delivery


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
        status = await self._run(delivery)
        if status == 0:
            await delivery.ack()
        else:
            await delivery.nack(reason=f"{self._words[0]} exited with {status}")

    async def _run(self, delivery: Delivery) -> int:
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
                *self._words, stdin=asyncio.subprocess.PIPE, env=inherited | place
            )
        except OSError as error:
            await delivery.nack(delay_ms=0, reason=str(error))
            raise UsageError(f"--exec: cannot run {self._words[0]!r}: {error.strerror}") from error
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                await command.communicate(delivery.value)
            return await command.wait()
        finally:
            if command.returncode is None:
                command.kill()  # its event goes to somebody else
