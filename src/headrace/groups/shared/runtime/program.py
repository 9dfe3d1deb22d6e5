"""Shared groups of one open log: the peer, made when the first session needs it."""

from __future__ import annotations

import asyncio

import msgspec

from headrace.groups.consumer import ConsumerOptions
from headrace.groups.shared.runtime.options import SharedOptions
from headrace.groups.shared.runtime.peer import LocalPeer
from headrace.groups.shared.runtime.session import Session
from headrace.host import Host
from headrace.net import TLS, Secured


class SharedRuntime:
    """Makes the peer once, and closes it."""

    def __init__(
        self,
        host: Host,
        options: SharedOptions,
        tls: TLS | None = None,
        dialled: str | None = None,
    ) -> None:
        self._host = host
        self._tls = tls
        self._dialled = dialled
        """What others dial, where that is known before the catalog is open."""
        self.options = options
        self.secured: Secured | None = None
        """TLS, if the log was opened with it."""
        self._peer: LocalPeer | None = None
        self._making = asyncio.Lock()

    async def secure_early(self) -> None:
        """Try TLS before anything is opened, where it is known what others dial."""
        if self._tls is not None and self._dialled is not None:
            self.secured = await asyncio.to_thread(Secured, self._tls, self._dialled)

    async def secure(self) -> None:
        """Try TLS once the catalog is open and tells what others dial; else close the program."""
        if self._tls is None or self.secured is not None:
            return
        try:
            found = await self._host.in_thread(self.options.resolved, self._host.log.catalog)
            self.secured = await self._host.in_thread(Secured, self._tls, found.dialled)
        except BaseException:
            await self._host.close()
            raise

    async def peer(self) -> LocalPeer:
        """This process's part in shared groups; listens from the first call on."""
        async with self._making:
            if self._peer is None:
                peer = LocalPeer(self._host, self.options, self.secured)
                await peer.open()
                self._peer = peer
            return self._peer

    def session(
        self,
        name: str | None,
        *,
        persistent: bool | None,
        expiry_ms: int,
        options: ConsumerOptions | None,
    ) -> Session:
        """A session that is not open yet."""
        session = Session(
            self._host,
            self.peer,
            name,
            persistent=persistent,
            expiry_ms=expiry_ms,
            options=options or ConsumerOptions(),
        )
        if not session.options.member:
            session.options = msgspec.structs.replace(session.options, member=session.name)
        return session

    async def close(self) -> None:
        """Give up what this process leads, and stop listening."""
        if self._peer is not None:
            peer, self._peer = self._peer, None
            await peer.close()
