"""Whether a group may be read in this region: heard of once for all readers of it in a program."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.catalog import Tx, entries
from headrace.errors import CatalogClosedError, HeadraceError
from headrace.groups import homes
from headrace.groups.readers.names import ReaderGroupName
from headrace.host import Host

RETRY_S = 0.2

_log = logging.getLogger(__name__)


class GroupHome:
    """Where a group is at home, as far as readers here have to know."""

    def __init__(self, host: Host, name: ReaderGroupName, moved: Callable[[], None]) -> None:
        self._host = host
        self._key = name.key
        self._moved = moved
        self._stops: list[Callable[[], None]] = []
        self._wanted = self._looking = self._known = self._closed = False
        self.waits = ""
        """Why readers wait in this region; empty if they may read."""

    @property
    def number(self) -> int | None:
        """This program's number for the group."""
        return homes.asking_of(self._host).number(self._key)

    async def start(self) -> None:
        """Listen, then look: nothing is missed in between."""
        if self._stops:
            return
        self._stops.append(lambda: None)
        for bucket in (homes.GROUPS_BUCKET, homes.PROOF_BUCKET):
            self._stops.append(await self._host.listen(entries.channel(bucket), self.look))
        await self._refresh()

    def stop(self) -> None:
        """Nobody wants to know any more."""
        self._closed = True
        for stop in self._stops:
            stop()

    def look(self) -> None:
        """There is news: look soon, once for all of it."""
        self._wanted = True
        if not (self._looking or self._closed):
            self._looking = True
            self._host.spawn(self._look())

    async def _look(self) -> None:
        try:
            while self._wanted and not self._closed:
                self._wanted = False
                try:
                    await self._refresh()
                except CatalogClosedError:
                    return
                except HeadraceError as error:
                    _log.warning("%s: where it is at home cannot be read: %s", self._key, error)
                    self._wanted = True
                    await self._host.sleep(RETRY_S)
        finally:
            self._looking = False

    async def _refresh(self) -> None:
        def read(tx: Tx, number: int | None) -> tuple[homes.HomeStanding, str]:
            stands = homes.standing(tx, self._key, number)
            return stands, stands.waits

        consumed = self._known and not self.waits
        asking = homes.asking_of(self._host)
        waits = await asking.look(self._key, read, consumed=consumed)
        self._known = True
        if waits != self.waits:
            self.waits = waits
            self._moved()
