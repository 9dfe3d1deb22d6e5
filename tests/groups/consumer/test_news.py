"""News of a stream: whoever listens hears how far it goes, whenever it was that it moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError
from headrace.groups.consumer.news import Reach, StreamNews
from headrace.host import Host
from tests.groups.consumer.rig import Rig, rig, run
from tests.support import until


class Listening:
    """Keeps how far it was told that a segment goes."""

    def __init__(self) -> None:
        self.heads: list[int] = []

    def __call__(self, reach: Reach | HeadraceError) -> None:
        assert isinstance(reach, Reach)
        self.heads.append(reach.head)

    async def comes_to(self, head: int) -> bool:
        return bool(self.heads) and self.heads[-1] == head


def test_news_from_before_anyone_listened_is_not_lost(catalog_url: str) -> None:
    """It comes while a unit is being opened, and may be the last for a long time."""

    async def work() -> None:
        async with rig(catalog_url) as r:
            news = StreamNews(r.hr.host, "orders")
            await news.open()
            await r.fill("abc")
            news.look()  # as the catalog's callback does
            listening = Listening()
            news.listen(0, listening, listening)
            await until(lambda: listening.comes_to(3))
            news.leave(0, listening)
            news.close()

    run(work())


def test_news_from_while_it_was_opened_is_not_lost(catalog_url: str) -> None:
    """The stream was read, then appended to, and nobody listened yet: the first one looks."""

    async def work() -> None:
        async with rig(catalog_url) as r:
            slow = SlowHost(r)
            news = StreamNews(slow, "orders")
            await news.open()
            assert slow.reads == 1
            listening = Listening()
            news.listen(0, listening, listening)
            await until(lambda: listening.comes_to(3))
            news.leave(0, listening)
            news.close()

    run(work())


class SlowHost(Host):
    """The first events are appended while the answer is on its way."""

    def __init__(self, r: Rig) -> None:
        super().__init__()
        self.start()
        self._rig = r
        self._log = r.hr.log
        self._loads = r.hr.host.loads
        self._pool = r.hr.host._pool
        self.reads = 0

    async def in_thread(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        answer = await self._rig.hr.in_thread(fn, *args, **kwargs)
        if fn == self.log.stream:
            self.reads += 1
            await self._rig.fill("abc")
        return answer
