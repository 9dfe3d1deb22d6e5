"""Housekeeping: retention takes effect while programs run, without anybody calling ``trim``.

Every open log looks now and then; a lease lets one of them do the work, so that many programs on
one catalog do not trip over each other.  What a policy lets go is trimmed, and files whose time
in the graveyard is over are removed.  A failure is logged and tried again at the next look.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from typing import TYPE_CHECKING

from headrace.catalog.streams import Limits
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.api.client import Headrace
    from headrace.log.log import Log

LEASE = "housekeeping"
EVERY_S = 30.0

_log = logging.getLogger(__name__)


class Housekeeper:
    """The task of one open log."""

    def __init__(self, client: Headrace, every_s: float = EVERY_S) -> None:
        self._client = client
        self._every_s = every_s
        self._owner = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._client.in_thread(
                    tidy, self._client.log, self._owner, int(self._every_s * 2000)
                )
            except HeadraceError as error:
                _log.warning("housekeeping: %s", error)


def tidy(log: Log, owner: str, lease_ttl_ms: int) -> bool:
    """One round, if no other process is at it; true if it was done here.

    The lease is kept, so that the same process goes on while it lives.
    """
    held = log.catalog.leases.get(LEASE)
    if held is not None and held.owner != owner:
        return False
    lease = log.catalog.leases.acquire(LEASE, owner, lease_ttl_ms)
    if lease is None:
        return False
    for stream in log.streams(internal=True):
        if stream.config.retention != Limits():
            log.trim(stream.name)
    log.empty_graveyard()
    return True
