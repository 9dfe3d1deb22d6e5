"""Peers that cannot dial each other: everybody gets a share all the same, and it is said."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

import headrace
from headrace.cli.doctor_server import check_members
from headrace.groups.shared.core import reach
from headrace.groups.shared.runtime import directory
from tests.groups.shared.runtime.support import (
    QUICK,
    Worker,
    has_units,
    publish,
    run,
    total,
)
from tests.support import until

SHARED = "$share/g/orders.>"
ELSEWHERE = "127.0.0.2"
"""Nobody listens there: what is dialled is refused."""


def open_unreachable(url: str) -> headrace.Headrace:
    options = msgspec.structs.replace(QUICK, host="127.0.0.1", advertise=ELSEWHERE)
    return headrace.open(url, housekeeping=False, shared=options)


@asynccontextmanager
async def members(url: str, count: int) -> AsyncIterator[tuple[headrace.Headrace, list[Worker]]]:
    """As many processes with a session each, none of which can dial another."""
    async with AsyncExitStack() as stack:
        logs = [await stack.enter_async_context(open_unreachable(url)) for _ in range(count)]
        await logs[0].create_stream("orders", ["orders.>"], segments=2 * count)
        workers = [
            await stack.enter_async_context(Worker(hr, f"w{n}", SHARED, soon=False))
            for n, hr in enumerate(logs)
        ]
        yield logs[0], workers


def test_with_no_machine_reachable_all_get_their_share_and_nothing_twice(
    catalog_url: str,
) -> None:
    async def test() -> None:
        async with members(catalog_url, 3) as (hr, workers):
            await until(lambda: all(has_units(2, w) for w in workers), "two units for each")
            values = await publish(hr, "orders", 100)
            await until(lambda: sum(total(*workers).values()) >= 100, "all acks")
            assert total(*workers) == dict.fromkeys(values, 1)
            assert all(worker.count for worker in workers)
            assert not any(worker.fenced for worker in workers)

    run(test())


def test_who_cannot_dial_the_leader_says_so_with_both_addresses(
    catalog_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")

    async def test() -> None:
        async with members(catalog_url, 2) as (hr, workers):
            await until(lambda: all(has_units(2, w) for w in workers), "two units for each")
            peer = await hr._shared.peer()
            catalog = hr.host.log.catalog
            here = catalog.read(directory.registered)
            port = next(each.port for each in here if each.peer == peer.name)
            dialled = f"cannot reach {ELSEWHERE}:{port}"
            own = [f"{each.peer} at {ELSEWHERE}:{each.port}" for each in here]

            said = [record.getMessage() for record in caplog.records]
            assert [text for text in said if "a leader cannot be dialled" in text]
            assert [text for text in said if "takes part through the catalog" in text]
            for text in said:
                assert dialled in text
                assert sum(name in text for name in own) >= 1

            found = (await hr.shared_groups.explain("g")).findings
            assert len(found) == 1
            assert found[0].startswith("member w1 takes part through the catalog")
            assert dialled in found[0]
            info = await hr.shared_groups.get("g")
            assert info.findings == found
            view = await hr.groups.get("g:orders.>")
            assert [each.finding for each in view.findings] == ["leader_unreached"]
            assert dialled in view.findings[0].sentence
            (check,) = check_members(catalog)
            assert (check.state, dialled in check.found) == ("warning", True)

    run(test())


def test_who_can_be_dialled_again_is_dialled_and_nothing_is_found_any_more(
    catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "DIAL_AGAIN_MS", 200)

    async def test() -> None:
        async with members(catalog_url, 2) as (hr, workers):
            await until(lambda: all(has_units(2, w) for w in workers), "two units for each")
            assert (await hr.shared_groups.explain("g")).findings
            leader = await hr._shared.peer()
            address = leader.ways.own
            assert address is not None
            await leader._register(msgspec.structs.replace(address, host="127.0.0.1"))
            await until(lambda: bool(leader.listener.connections), "a connection")
            values = await publish(hr, "orders", 50)
            await until(lambda: sum(total(*workers).values()) >= 50, "all acks")
            assert total(*workers) == dict.fromkeys(values, 1)

            async def well() -> bool:
                return not (await hr.shared_groups.explain("g")).findings

            while not await well():
                await hr.host.sleep(0.05)

    run(test())
