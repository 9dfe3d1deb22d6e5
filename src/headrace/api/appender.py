"""Appending in a plain loop at full speed: pipelined, with back-pressure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.host.pipelined import Pipelined
from headrace.log.append import Write
from headrace.log.given import to_batch

if TYPE_CHECKING:
    from headrace.api.client import Headrace
    from headrace.log.events import Events


class Appender(Pipelined):
    """Appends to one stream that are on their way; see :meth:`Headrace.appender`."""

    def __init__(self, client: Headrace, stream: str) -> None:
        super().__init__(client.host, stream)
        self._client = client  # is in use as long as the appender is

    async def append(self, data: Events) -> None:
        """Append events; returns once they are checked and there is room for more.

        Events that break a rule raise here, and nothing of this call is written.  If an earlier
        append could not be stored, that raises too, now and at every call that follows.
        """
        self._host.check()
        self._check()
        await self._put(self._write_of(await self._host.writes.checked(data)))

    def append_from_thread(self, data: Events) -> bool:
        """Append from another thread than the loop's; if there is no room, do nothing: false."""
        self._host.check_thread()
        self._check()
        if self._is_full:
            return False
        self._put_from_thread(self._write_of(to_batch(data)))
        return True

    def _write_of(self, batch: pa.RecordBatch) -> Write:
        write = self._host.log.write_of()
        write.add(self._stream, batch, captured=True)
        return write
