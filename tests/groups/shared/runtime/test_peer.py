"""The peer: who hears what when, within one process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import Fenced, HeadraceError
from headrace.groups.consumer import OwnedUnit, UnitAck, UnitEvents
from headrace.groups.progress import Progress
from headrace.groups.shared.core.records import StoredGroup
from headrace.groups.shared.core.registry import StartLeader
from headrace.groups.shared.properties import GroupProperties
from headrace.groups.shared.runtime.borrowing import Borrowing
from headrace.groups.shared.runtime.options import SharedOptions
from headrace.groups.shared.runtime.peer import LocalPeer
from tests.groups.shared.runtime.support import open_log, run
from tests.support import until


class Sink:
    """Stands in for a consumer: has its units, and no events."""

    closed = False
    valid_until_s = math.inf

    def __init__(self) -> None:
        self.units: dict[str, OwnedUnit] = {}

    def open(self, unit: OwnedUnit, owner: UnitEvents) -> None:
        self.units[unit.unit] = unit

    def drain(self, units: Mapping[str, int]) -> None: ...

    def abandon(self, unit: str, token: int, why: Fenced) -> None: ...

    def pause(self, units: Mapping[str, int]) -> None: ...

    def resume(self, units: Mapping[str, int]) -> None: ...

    def fail(self, error: HeadraceError) -> None: ...


def test_a_leader_here_has_an_ack_at_once_and_the_session_hears_of_it_later(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            await hr.shared_groups.declare("g", ">")
            peer = LocalPeer(hr.host, SharedOptions())
            await peer.open()
            sink = Sink()
            borrowing = Borrowing(peer, sink, "s", 1, peer.options.borrower)
            peer.add_session("s:1", borrowing)
            borrowing.subscribe("$share/g/>")
            await until(lambda: len(sink.units) == 2, "both units")
            (leading,) = peer.leaders.values()
            await until(lambda: leading.idle, "the leader to have nothing to do")

            results: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            acks = [UnitAck(unit, Progress(floor=5)) for unit in sink.units.values()]
            borrowing.begin(acks, lambda found, error: results.set_result([found, error]))
            heads = {unit: state.acked.floor for unit, state in leading.core.units.items()}
            assert heads == {"orders/0": 5, "orders/1": 5}
            assert not results.done()
            assert await results == [[None, None], None]
            await peer.close()

    run(test())


def test_what_is_posted_is_done_in_its_order_and_never_within_something_else(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            peer = LocalPeer(hr.host, SharedOptions())
            steps: list[str] = []

            def first() -> None:
                steps.append("first begins")
                peer.post(second)
                peer.run(lambda: steps.append("a call within"))
                peer.hand_over(lambda: steps.append("another"))
                steps.append("first ends")

            def second() -> None:
                steps.append("second begins")
                peer.run(lambda: peer.post(lambda: steps.append("third")))
                steps.append("second ends")

            expected = ["first begins", "a call within", "another", "first ends"]
            expected += ["second begins", "second ends", "third"]
            for enter in (peer.run, peer.hand_over):
                steps.clear()
                enter(first)
                assert steps == expected
            steps.clear()
            peer.post(first)
            assert steps == []
            await until(lambda: steps == expected, "the loop's next turn")

    run(test())


def test_a_failure_costs_nobody_else_their_turn(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            peer = LocalPeer(hr.host, SharedOptions())
            failures: list[Any] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
            done: list[str] = []

            def speak() -> None:
                peer.post(lambda: done.remove("what is not there"))
                peer.post(lambda: done.append("the other"))

            peer.hand_over(speak)
            assert done == ["the other"]
            assert [type(failure) for failure in failures] == [ValueError]

    run(test())


def test_peer_that_loads_a_group_after_its_lease_ran_out_does_not_lead_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            peer = LocalPeer(hr.host, SharedOptions())
            await peer.open()
            late = GroupProperties(group="late", filter=">", start="now")
            sent_ms = peer.now_ms - late.settings.lease_ttl_ms
            peer.start(StartLeader(late.key, token=1, sent_ms=sent_ms), late, StoredGroup())
            assert late.key not in peer.leaders
            assert late.key not in peer.registry.local
            await peer.close()

    run(test())
