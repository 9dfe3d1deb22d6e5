"""Housekeeping: retention takes effect while programs run, without anybody calling ``trim``.

Every open log looks now and then; a lease lets one of them do the work, so that many programs on
one catalog do not trip over each other.  What a policy lets go is trimmed, and files whose time
in the graveyard is over are removed.  A failure is logged and tried again at the next look.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.catalog.streams import Limits
from headrace.errors import HeadraceError
from headrace.host import Host, Stage

if TYPE_CHECKING:
    from headrace.log.log import Log

LEASE = "housekeeping"
EVERY_S = 30.0

_log = logging.getLogger(__name__)


class Housekeeper:
    """The task of one open log."""

    def __init__(self, host: Host, every_s: float = EVERY_S) -> None:
        self._host = host
        self._every_s = every_s
        self._owner = host.clock.local_name()
        self._tasks = host.tasks("housekeeping")
        self._tasks.spawn(self._run())
        host.serve(Stage.CHORES, self)

    async def close(self) -> None:
        """Start no further round."""
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            await self._host.sleep(self._every_s)
            try:
                await self._host.in_thread(
                    tidy, self._host.log, self._owner, int(self._every_s * 2000)
                )
            except HeadraceError as error:
                _log.warning("housekeeping: %s", error)


def tidy(log: Log, owner: str, lease_ttl_ms: int) -> bool:
    """One round, if this process gets the lease; whether it did.

    The lease is not given back, so that the same process does the next round, too.
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
