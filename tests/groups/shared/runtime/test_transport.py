"""Between peers: the secret, frames that make no sense, connections that end, slow peers."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import headrace
from headrace.errors import FrameError
from headrace.groups.progress import Progress
from headrace.groups.shared.core.assignment import UnitState
from headrace.groups.shared.core.messages import (
    Disconnect,
    FromBorrower,
    FromLeader,
    Grant,
    LeaderConnectResponse,
    LeaderWanted,
    Ping,
    RevokeFinished,
    UnitReport,
    UpdateProgress,
)
from headrace.groups.shared.core.pace import Pace
from headrace.groups.shared.runtime import directory, frames
from headrace.groups.shared.runtime.election import Election
from headrace.groups.shared.runtime.leading import Leading
from headrace.groups.shared.runtime.peer import LocalPeer
from headrace.net import Outbox, Post, Target, links
from headrace.net.wire import Traffic
from tests.groups.shared.runtime.support import (
    PATIENCE_S,
    QUICK_BORROWER,
    QUICK_LEADER,
    Worker,
    has_units,
    more_than,
    open_log,
    publish,
    run,
)
from tests.support import until

SHARED = "$share/g/orders.>"
WANTED = LeaderWanted("g:orders.>", "x:1:1", 0, "x")


async def target_of(hr: headrace.Headrace) -> tuple[LocalPeer, Target]:
    """Where this process listens, and the secret."""
    peer = await hr._shared.peer()
    target = await peer.look_up(peer.name)
    assert target is not None
    return peer, target


def dial(target: Target) -> connect:
    headers = {"Authorization": f"Bearer {target.secret}"}
    return connect(target.url(frames.PATH), additional_headers=headers, proxy=None)


async def closed(connection: ClientConnection) -> int:
    """The code with which the other side hangs up."""
    with pytest.raises(ConnectionClosed):
        await connection.recv()
    assert connection.close_code is not None
    return connection.close_code


def test_a_peer_lets_in_who_knows_the_secret_of_its_catalog(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            peer, target = await target_of(hr)
            assert target.host == "127.0.0.1"
            assert len(target.secret) > 40
            with pytest.raises(InvalidStatus) as refused:
                await dial(msgspec.structs.replace(target, secret="wrong"))
            assert refused.value.response.status_code == 401
            async with dial(target) as connection:
                await connection.send(frames.encode([WANTED]))
                await until(lambda: peer.listener.statistics().received == 1, "the message")

    run(test())


def test_every_peer_of_a_catalog_has_the_same_secret(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as one, open_log(catalog_url) as other:
            (_, first), (_, second) = await target_of(one), await target_of(other)
            assert first.secret == second.secret
            assert first.port != second.port
        async with open_log(catalog_url) as again:
            entries = again.log.catalog.entries.list(directory.BUCKET)
            assert entries == (), "addresses go with their peers"
            assert (await target_of(again))[1].secret == first.secret

    run(test())


def test_a_frame_that_makes_no_sense_ends_its_connection_and_the_leader_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 20_000)

    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            async with Worker(hr, "a", SHARED) as a:
                await until(lambda: len(a.session.units) == 2, "its units")
                peer, target = await target_of(hr)
                leader = peer.leaders["g:orders.>"]
                answer = LeaderConnectResponse("g:orders.>", "x:1:1", 1, "n")
                for bad in (
                    b"",
                    b"\xff\xff\xff",
                    "text",
                    msgspec.msgpack.encode({"type": "Ping"}),
                    msgspec.msgpack.encode([{"type": "Ping", "group": 1}]),
                    msgspec.msgpack.encode([{"type": "Nonsense"}]),
                    frames.encode([answer]),
                    b"\x91" * 5000,
                ):
                    async with dial(target) as connection:
                        await connection.send(bad)
                        assert await closed(connection) == 1008
                async with dial(target) as connection:
                    await connection.send(b"x" * 30_000)
                    assert await closed(connection) == 1008
                # Well-formed frames that lie are refused by the cores, one message at a time.
                report = UnitReport("orders/0", 99, ((0, 5),))
                lies = [
                    Ping("g:orders.>", "nobody:1:1", leader.token, 1),
                    Ping("g:orders.>", "a:1:1", leader.token + 7, 1),
                    UpdateProgress("g:orders.>", "a:1:1", leader.token, 1, (report,)),
                    UpdateProgress("other", "a:1:1", 1, 1, ()),
                ]
                async with dial(target) as connection:
                    await connection.send(frames.encode(lies))
                    await connection.recv()
                await publish(hr, "orders", 10)
                await until(lambda: a.count == 10, "the events")
                assert peer.leaders["g:orders.>"] is leader
                assert a.delivered == a.acked

    run(test())


def test_connections_that_are_cut_are_dialled_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as one, open_log(tmp_path / "d") as other:
            await one.create_stream("orders", ["orders.>"], segments=4)
            async with Worker(one, "a", SHARED) as a, Worker(other, "b", SHARED) as b:
                await until(lambda: len(b.session.units) == 2, "its share")
                peer, there = await one._shared.peer(), await other._shared.peer()
                publishing = asyncio.create_task(publish(one, "orders", 1000))
                for turn in range(5):
                    await until(lambda: peer.listener.connections, "a connection")
                    for connection in list(peer.listener.connections):
                        connection.abort()
                    await until(functools.partial(more_than, 100 * turn, a, b), "progress")
                values = await publishing
                await until(lambda: len(a.acked + b.acked) == 1000, "all events")
                assert a.delivered + b.delivered == dict.fromkeys(values, 1)
                assert there.peers.statistics().sent > 0

    run(test())


def test_what_was_on_a_connection_that_is_cut_is_said_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "REDIAL_S", 0.0)
    take = LocalPeer.from_borrowers
    lost: list[FromBorrower] = []
    losing = False

    def losing_take(
        self: LocalPeer, messages: list[FromBorrower], outbox: Outbox[FromLeader]
    ) -> None:
        if losing:
            lost.extend(messages)
        else:
            take(self, messages, outbox)

    monkeypatch.setattr(LocalPeer, "from_borrowers", losing_take)
    patient = msgspec.structs.replace(QUICK_BORROWER, ping_ms=2000, resend_ms=600_000)

    async def test() -> None:
        nonlocal losing
        options = headrace.SharedOptions(borrower=patient, leader=QUICK_LEADER)
        async with (
            open_log(tmp_path / "d") as one,
            headrace.open(tmp_path / "d", housekeeping=False, shared=options) as other,
        ):
            await one.create_stream("orders", ["orders.>"])
            # The group is led where its first subscriber was.
            async with Worker(one, "a", SHARED) as a:
                await until(lambda: a.session.units, "its unit")
                session = other.session("b")
                await session.__aenter__()
                await session.subscribe(SHARED)
            peer = await one._shared.peer()
            assert peer.leaders
            await until(lambda: session.units, "its unit")
            await publish(one, "orders", 2)
            deliveries = aiter(session)
            await (await anext(deliveries)).ack()
            last = await anext(deliveries)
            losing = True
            ack = asyncio.ensure_future(last.ack())
            await until(lambda: lost, "the report")
            assert not ack.done()
            losing = False
            for connection in list(peer.listener.connections):
                connection.abort()
            await asyncio.wait_for(ack, PATIENCE_S)
            await session.close()

    run(test())


def test_members_come_and_go_while_their_leader_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if many reported: reports wait for the next commit, and connections to be read.
    monkeypatch.setattr(Pace, "busy", property(lambda _: True))
    kept = 0
    keep = Leading.keep

    def counting(self: Leading, report: UpdateProgress) -> bool:
        nonlocal kept
        found = keep(self, report)
        kept += found
        return found

    monkeypatch.setattr(Leading, "keep", counting)

    async def test() -> None:
        async with open_log(tmp_path / "d") as one, open_log(tmp_path / "d") as other:
            await one.create_stream("orders", ["orders.>"], segments=4)
            async with Worker(one, "a", SHARED) as a:
                delivered = Counter[bytes]()
                values: list[bytes] = []
                for turn in range(5):
                    async with Worker(other, f"b{turn}", SHARED) as b:
                        await until(functools.partial(has_units, 2, b), "its share")
                        values += await publish(one, "orders", 200, first=200 * turn)
                        await until(functools.partial(more_than, 20, b), "events")
                    delivered += b.delivered
                await until(lambda: sum(delivered.values()) + a.count >= 1000, "all events")
                assert a.delivered + delivered == dict.fromkeys(values, 1)
                assert kept

    run(test())


@asynccontextmanager
async def at_work(folder: Path) -> AsyncIterator[tuple[LocalPeer, Leading, UnitState]]:
    """A peer, its leader, and the unit with ten events that a session here holds."""
    async with open_log(folder) as hr:
        await hr.create_stream("orders", ["orders.>"])
        async with hr.session("w") as session:
            await session.subscribe(SHARED, start="earliest")
            await publish(hr, "orders", 10)
            await until(lambda: session.units, "its unit")
            peer = await hr._shared.peer()
            leading = peer.leaders["g:orders.>"]
            yield peer, leading, leading.core.units["orders/0"]


def test_what_a_busy_leader_keeps_for_later_is_not_overtaken_by_a_good_bye(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with at_work(tmp_path / "d") as (_, leading, unit):
            who = ("g:orders.>", unit.borrower, leading.token)
            report = UpdateProgress(*who, 1000, (UnitReport("orders/0", unit.token, ((0, 5),)),))
            assert not leading.keep(report), "nothing is gathered: it is taken in at once"
            leading.core.gather()
            assert leading.keep(report)
            assert leading.core.progress_of("orders/0").floor == 0
            assert not leading.idle
            leading.receive(Disconnect(*who, 1001, ()))
            assert leading.core.progress_of("orders/0").floor == 5

    run(test())


def test_reports_behind_another_message_are_in_time_for_the_commit_that_is_due(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with at_work(tmp_path / "d") as (peer, leading, unit):
            who = ("g:orders.>", unit.borrower, leading.token)
            report = UnitReport("orders/0", unit.token, ((0, 5),))
            wire = frames.to_borrowers()
            outbox = Outbox(wire, wire.codec(), Traffic(), Post())
            leading.core.gather()
            other = RevokeFinished(*who, "orders/9", 1)
            peer.from_borrowers([other, UpdateProgress(*who, 1000, (report,))], outbox)
            assert leading.core.progress_of("orders/0").floor == 0
            peer.hear()  # as a leader does right before it stores what it has
            assert leading.core.progress_of("orders/0").floor == 5
            outbox.close()

    run(test())


def test_a_leader_that_cannot_be_found_is_found_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = Election.look_up
    may_look = asyncio.Event()
    looks = 0

    async def when_it_may(self: Election, group: str) -> None:
        nonlocal looks
        await may_look.wait()
        await look_up(self, group)
        looks += 1

    monkeypatch.setattr(Election, "look_up", when_it_may)

    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            async with hr.session("w") as session:
                # The group disappears between the subscription and the search for its leader.
                await session.subscribe(SHARED)
                await hr.shared_groups.delete("g", force=True)
                may_look.set()
                await until(lambda: looks, "a search in vain")
                assert not session.units
                await hr.shared_groups.declare("g", "orders.>", start="earliest")
                await until(lambda: session.units, "a unit")

    run(test())


def test_the_secret_is_never_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> str:
        async with open_log(tmp_path / "d") as one, open_log(tmp_path / "d") as other:
            await one.create_stream("orders", ["orders.>"], segments=2)
            async with Worker(one, "a", SHARED), Worker(other, "b", SHARED) as b:
                await until(lambda: b.session.units, "a unit by way of the network")
            return (await target_of(one))[1].secret

    with caplog.at_level(logging.DEBUG):
        secret = run(test())
    assert secret not in caplog.text


def test_an_address_that_cannot_be_bound_is_said_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        options = headrace.SharedOptions(host="192.0.2.1")
        async with headrace.open(tmp_path / "d", shared=options) as hr:
            with pytest.raises(headrace.HeadraceError, match=r"192\.0\.2\.1"):
                async with hr.session("w"):
                    pass

    run(test())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    for decode in (frames.decode_from_borrowers, frames.decode_from_leaders):
        try:
            assert isinstance(decode(data), list)
        except FrameError:
            pass


def test_a_grant_with_impossible_progress_is_refused() -> None:
    grant = Grant("g", "b", 1, "orders/0", 1, Progress(5, ((3, 4),)))
    with pytest.raises(FrameError, match="orders/0"):
        frames.decode_from_leaders(frames.encode([grant]))
    fine = Grant("g", "b", 1, "orders/0", 1, Progress(5, ((7, 9),), ((6, 2),)))
    assert frames.decode_from_leaders(frames.encode([fine])) == [fine]
