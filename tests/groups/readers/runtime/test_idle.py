"""Readers that have nothing to do ask the catalog for next to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.groups.readers.runtime.hub import hub_of
from headrace.groups.readers.runtime.life import ReaderLife
from tests.groups.readers.runtime.support import freeze
from tests.support import until


class Reads:
    """Counts the reads of a catalog."""

    def __init__(self, hr: headrace.Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = hr.log.catalog.read

        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return read(*args, **options)

        monkeypatch.setattr(hr.log.catalog, "read", counted)


KEPT: list[object] = []
"""Readers that nobody else holds."""


@pytest.fixture(autouse=True)
def none_kept() -> Iterator[None]:
    yield
    KEPT.clear()


async def idling(hr: headrace.Headrace, group: str) -> ReaderLife:
    made = await hr.reader_groups.create(group, streams=["s"])
    reader = await made.reader("one").__aenter__()
    KEPT.append(reader)
    await until(lambda: bool(reader.status.segments))
    life = reader.running._life
    assert life is not None
    return life


def check(tmp_path: Path, work: Callable[[headrace.Headrace], Any]) -> None:
    async def opened() -> None:
        async with headrace.open(tmp_path / "d", housekeeping=False) as hr:
            await hr.create_stream("s", ["s.>"])
            await work(hr)

    asyncio.run(opened())


def test_looks_of_one_moment_are_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(hr: headrace.Headrace) -> None:
        lives = [await idling(hr, name) for name in ("a", "b", "c")]
        hub, reads = hub_of(hr.host), Reads(hr, monkeypatch)
        for life in lives:
            hub.refresh(life._following)
        assert hub._refreshing is not None
        await hub._refreshing
        assert reads.count == 1
        for life in lives:
            hub.refresh(life._following)
        lives[1]._following._config = b""  # as if its news had been lost
        await hub._refreshing
        await until(lambda: lives[1]._following.version.config != b"")

    check(tmp_path, work)


def test_the_lag_is_looked_up_after_news_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        life = await idling(hr, "a")
        assert await life._lag_ms() == 0
        reads = Reads(hr, monkeypatch)
        assert await life._lag_ms() == 0
        assert reads.count == 0
        await hr.publish("s.x", b"1")
        await until(lambda: not life._lagging.unchanged)
        await life._lag_ms()
        assert not life._lagging.unchanged  # it is behind

    check(tmp_path, work)


def test_nobody_looks_for_the_dead_where_all_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        life = await idling(hr, "a")
        hub, following = hub_of(hr.host), life._following
        hub.renew(life, following.name.lease("one"), life.lease_token, 60_000)
        assert hub._renewing is not None
        await hub._renewing
        reads = Reads(hr, monkeypatch)
        now_ms = life.core._detect_at_ms = hr.host.now_ms()
        life.step()
        assert life.core._detect_at_ms > now_ms + 30_000  # known at once
        left_ms = await hub.detect(following)
        assert left_ms is not None
        assert 0 < left_ms <= 60_000
        assert reads.count == 0
        following.state.members["one"].lease_token += 1  # another program's
        following.joins += 1
        await hub.detect(following)
        assert reads.count == 1
        left_ms = await hub.detect(following)
        assert left_ms is not None
        assert 0 < left_ms <= 60_000
        assert reads.count == 1  # and what it found is known until then

    check(tmp_path, work)


def test_a_look_is_a_read_and_only_a_finding_is_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await idling(hr, "a")
        async with headrace.open(tmp_path / "d", housekeeping=False) as other:
            theirs = await other.reader_groups.get("a")
            dies = await theirs.reader("dies", lease_ttl_ms=600).__aenter__()
            KEPT.append(dies)
            hub = hub_of(hr.host)
            following = hub._following["a"]
            await until(lambda: "dies" in following.state.members)
            writes: list[object] = []
            write = hr.host.in_transaction

            def counted(*args: Any, **options: Any) -> Any:
                writes.append(args)
                return write(*args, **options)

            monkeypatch.setattr(hr.host, "in_transaction", counted)
            left_ms = await hub.detect(following)
            assert left_ms is not None
            assert not writes
            freeze(dies)
            await until(lambda: "dies" not in following.state.members)
            assert writes

    check(tmp_path, work)
