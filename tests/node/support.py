"""A real node on a real catalog, in a thread of its own, and a client that speaks HTTP."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

import headrace
from headrace.node.node import NodeSettings
from headrace.node.serving import Served

T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True):
    """What a node answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class RunningNode:
    """A node that serves; calls of the library go to its loop."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._url = url
        self._settings = NodeSettings(**{"port": 0, **settings})
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self.served: Served
        self.hr: headrace.Headrace
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        async with headrace.open(self._url) as hr:
            self.hr = hr
            folder = getattr(hr.log.catalog, "folder", None)
            self.served = Served(hr, self._settings, folder=folder)
            await self.served.start()
            self._ready.set()
            await self._stopping.wait()
            await self.served.stop()

    def stop(self) -> None:
        if self._thread.is_alive() and self._failure is None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the node's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    @property
    def port(self) -> int:
        return self.served.settings.port

    @property
    def token(self) -> str:
        return self.served.token

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = "",
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """One request; with the node's own token unless another, or None, is given."""
        made = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = dict(headers or {})
        if token is not None:
            sent.setdefault("authorization", f"Bearer {token or self.token}")
        data = raw if raw is not None else (None if body is None else msgspec.json.encode(body))
        try:
            made.request(method, path, data, sent)
            found = made.getresponse()
            return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())
        finally:
            made.close()

    def get(self, path: str, **options: Any) -> Any:
        """The JSON of a good answer."""
        found = self.ask("GET", f"/api/v1{path}", **options)
        assert found.status == 200, found.body
        return found.json()

    def post(self, path: str, body: Any, **options: Any) -> Any:
        found = self.ask("POST", f"/api/v1{path}", body, **options)
        assert found.status == 200, found.body
        return found.json()


@contextmanager
def running(url: str, **settings: Any) -> Iterator[RunningNode]:
    """A node for the length of a block."""
    node = RunningNode(url, **settings)
    node.start()
    try:
        yield node
    finally:
        node.stop()


class LiveClient:
    """Reads server-sent events."""

    def __init__(self, node: RunningNode, path: str, headers: dict[str, str] | None = None) -> None:
        self._made = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
        sent = {"authorization": f"Bearer {node.token}", **(headers or {})}
        self._made.request("GET", path, headers=sent)
        self._answer = self._made.getresponse()
        self.status = self._answer.status

    def next(self) -> tuple[str, str, Any]:
        """(event, id, data) of the next one; ("", "", None) at the end."""
        found: dict[str, str] = {}
        while True:
            line = self._answer.readline().decode()
            if not line:
                return "", "", None
            if line == "\n":
                if "data" in found:
                    data = msgspec.json.decode(found["data"])
                    return found.get("event", ""), found.get("id", ""), data
                found = {}
                continue
            name, _, value = line.rstrip("\n").partition(": ")
            found[name] = value

    def until(self, event: str) -> tuple[str, Any]:
        """(id, data) of the next event of a kind."""
        while True:
            name, id, data = self.next()
            assert name, f"the stream ended without {event!r}"
            if name == event:
                return id, data

    def close(self) -> None:
        self._made.close()


async def read_some(node: RunningNode, count: int) -> None:
    """Have a reader ack some events, and leave."""
    group = await node.hr.reader_groups.get("report")
    async with group.reader("r1") as reader:
        left = count
        async for delivery in reader:
            await delivery.ack()
            left -= 1
            if not left:
                break
