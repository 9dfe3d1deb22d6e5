"""Joining under a name that an earlier program may still have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.catalog import leases
from headrace.errors import CatalogClosedError, ReaderBusyError, UnknownReaderGroupError
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime import liveness
from headrace.groups.readers.runtime.liveness import JoinedAs, NameHeld
from headrace.host import Host

if TYPE_CHECKING:
    from headrace.groups.readers.runtime.hub import ReaderHub
    from headrace.groups.readers.runtime.life import ReaderLife

NAME_LOOK_S = 0.25
"""How often somebody looks who waits for a name."""

Ask = Callable[[leases.Lease | None], Awaitable[JoinedAs | NameHeld]]
"""One attempt to join; a lease that was watched running out is given."""


async def take_name(
    host: Host, name: ReaderGroupName, reader: str, ttl_ms: int, ask: Ask
) -> tuple[JoinedAs, float]:
    """Join, and until when that holds, in seconds of this program's clock.

    Somebody alive who has the name is waited for up to the length of that lease; then it raises.
    """
    watch, over = leases.Watch(), None
    began_ms = host.now_ms()
    while True:
        asked_ms = host.now_ms()
        answer = await ask(over)
        if isinstance(answer, JoinedAs):
            return answer, (asked_ms + ttl_ms) / 1000
        now_ms = host.now_ms()
        over = answer.lease
        theirs_ms = answer.ttl_ms or ttl_ms
        if not watch.is_over(over, answer.now_us, now_ms, theirs_ms):
            over = None
            if now_ms > began_ms + theirs_ms:
                raise ReaderBusyError(name.group, reader, answer.lease.owner)
            left_s = (answer.lease.expires_us - answer.now_us) / 1e6
            await host.sleep(min(NAME_LOOK_S, max(0.001, left_s)))


async def give_back(
    hub: ReaderHub, name: ReaderGroupName, reader: str, joined: ReaderLife | JoinedAs
) -> None:
    """Leave the group; one that is gone was left."""
    with suppress(UnknownReaderGroupError):
        await hub.transact(
            name,
            lambda commit: liveness.leave(commit, reader, joined.token, joined.lease_token, ""),
        )


class JoinAttempts:
    """The joins of one reader: none that was given up comes about and stays."""

    def __init__(
        self, host: Host, give_back: Callable[[JoinedAs], Coroutine[Any, Any, None]]
    ) -> None:
        self._host = host
        self._give_back = give_back
        self._asking: asyncio.Task[JoinedAs | NameHeld] | None = None
        """One that is under way, or that was given up."""
        self._ended = False

    def check(self) -> None:
        """Raise if the reader has left meanwhile."""
        if self._ended:
            raise CatalogClosedError("this reader has left its group; start the query again")

    async def ask(self, joining: Coroutine[Any, Any, JoinedAs | NameHeld]) -> JoinedAs | NameHeld:
        """One attempt; if it is given up and joins all the same, that is given back."""
        if self._ended:
            joining.close()
            self.check()
        self._asking = self._host.spawn(joining, awaited=True)
        answer = await self._host.or_undo(self._asking, self._late)
        self._asking = None
        return answer

    def _late(self, answer: JoinedAs | NameHeld) -> None:
        if isinstance(answer, JoinedAs) and not self._ended:
            self._host.spawn(self._give_back(answer))

    async def end(self) -> None:
        """No more attempts; what one that is under way comes to is given back."""
        self._ended = True
        asking = self._asking
        if asking is None:
            return
        await asyncio.wait([asking])
        if not asking.cancelled() and asking.exception() is None:
            answer = asking.result()
            if isinstance(answer, JoinedAs):
                await self._give_back(answer)
