"""Shared groups of one open log: the node, made when the first session needs it."""

from __future__ import annotations

import asyncio

import msgspec

from headrace.groups.consumer import ConsumerOptions
from headrace.groups.shared.node import Node, SharedOptions
from headrace.groups.shared.session import Session
from headrace.host import Host


class SharedRuntime:
    """Makes the node once, and closes it."""

    def __init__(self, host: Host, options: SharedOptions) -> None:
        self._host = host
        self._options = options
        self._node: Node | None = None
        self._making = asyncio.Lock()

    async def node(self) -> Node:
        """This process's part in shared groups; listens from the first call on."""
        async with self._making:
            if self._node is None:
                node = Node(self._host, self._options)
                await node.open()
                self._node = node
            return self._node

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
            self.node,
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
        if self._node is not None:
            node, self._node = self._node, None
            await node.close()
