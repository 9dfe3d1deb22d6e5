"""Three peers as real processes: leaders killed, frozen and back, members killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import headrace
from headrace.catalog import Catalog
from headrace.groups.shared.admin import Groups
from headrace.groups.shared.runtime import state
from headrace.log.log import Log
from tests.groups.shared.runtime.support import open_log, publish
from tests.support import Process, process, wait_until

GROUP = "g:orders.>"
TEXT = "$share/g/orders.>"


class Cluster:
    """Some member processes on one catalog."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self.url = url
        self._folder = folder
        self._stack = stack
        self.members: dict[str, Process] = {}

    def start(self, name: str) -> Process:
        member = self._stack.enter_context(
            process(
                "tests.groups.shared.runtime.member",
                self.url,
                name,
                str(self._folder / name),
                TEXT,
            )
        )
        assert member.line() == "ready"
        self.members[name] = member
        return member

    def lines(self, mark: bytes) -> list[tuple[int, bytes]]:
        """(time, value) of what was delivered (+), acked (!) or failed (?), over all members."""
        found = []
        for file in self._folder.iterdir():
            for line in file.read_bytes().splitlines():
                kind, _, rest = line.partition(b" ")
                at, _, value = rest.partition(b" ")
                if kind == mark and value:
                    found.append((int(at), value))
        return found

    def seen(self, mark: bytes) -> Counter[bytes]:
        """How often each value was delivered (+) or acked (!)."""
        return Counter(value for _, value in self.lines(mark))

    def account(self, values: list[bytes]) -> None:
        """Nothing missing, nothing acked twice, and nothing delivered after its ack."""
        assert set(self.seen(b"+")) == set(values)
        acked = {value: at for at, value in self.lines(b"!")}
        assert len(acked) == len(self.lines(b"!")), "an ack counted twice"
        late = [value for at, value in self.lines(b"+") if at > acked.get(value, at)]
        assert late == []
        assert self.seen(b"?") == {}

    def leader(self) -> str | None:
        """The name of the member whose process leads."""
        for name, member in self.members.items():
            member.tell("leads")
            if GROUP in member.line():
                return name
        return None

    def units(self) -> dict[str, int]:
        found = {}
        for name, member in self.members.items():
            member.tell("units")
            found[name] = len(member.line().split())
        return found


@contextmanager
def cluster(url: str, folder: Path) -> Iterator[Cluster]:
    folder.mkdir()

    async def prepare() -> None:
        async with open_log(url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=6)

    asyncio.run(prepare())
    with ExitStack() as stack:
        yield Cluster(url, folder, stack)


def publish_all(url: str, count: int) -> list[bytes]:
    async def work() -> list[bytes]:
        async with headrace.open(url, housekeeping=False) as hr:
            return await publish(hr, "orders", count)

    values: list[bytes] = asyncio.run(work())
    return values


def lag(catalog: Catalog) -> int:
    """Events that the group has not acked."""
    return Groups(Log(catalog, None)).get("g").lag_events


def token(catalog: Catalog) -> int:
    row = catalog.read(
        lambda tx: tx.row("SELECT token FROM leases WHERE name = ?", (state.lease_name(GROUP),))
    )
    return int(row[0]) if row else 0


def test_three_peers_and_the_leader_is_killed(
    catalog_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with cluster(catalog_url, tmp_path / "out") as peers:
        for name in ("a", "b", "c"):
            peers.start(name)
        wait_until(lambda: set(peers.units().values()) == {2}, "two units each", 40)
        catalog = request.getfixturevalue("reopen")()
        assert peers.leader() == "a"
        assert token(catalog) == 1, "no spurious election"
        values = publish_all(catalog_url, 150)
        wait_until(lambda: len(peers.seen(b"!")) > 15, "the members to be at it")
        peers.members.pop("a").kill()
        wait_until(lambda: lag(catalog) == 0, "every event to be acked", 40)
        assert peers.leader() in ("b", "c")
        assert token(catalog) == 2, "one election"
        wait_until(lambda: set(peers.units().values()) == {3}, "three units each", 40)
        # What was acked never comes again; what was in flight may, one event per unit and key.
        peers.account(values)
        assert len(peers.lines(b"+")) - len(values) <= 6


def test_a_frozen_leader_comes_back_and_its_writes_are_refused(
    catalog_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with cluster(catalog_url, tmp_path / "out") as peers:
        frozen = peers.start("a")
        peers.start("b")
        wait_until(lambda: set(peers.units().values()) == {3}, "three units each", 40)
        assert peers.leader() == "a"
        catalog = request.getfixturevalue("reopen")()
        os.kill(frozen.pid, signal.SIGSTOP)
        values = publish_all(catalog_url, 100)
        del peers.members["a"]
        wait_until(lambda: peers.leader() == "b", "the other to lead")
        wait_until(lambda: lag(catalog) == 0, "every event to be acked", 40)
        assert token(catalog) == 2
        os.kill(frozen.pid, signal.SIGCONT)
        peers.members["a"] = frozen
        wait_until(lambda: set(peers.units().values()) == {3}, "the share of who came back", 40)
        assert peers.leader() == "b"
        assert token(catalog) == 2, "the one that came back leads no more"
        peers.account(values)


def test_a_session_of_the_same_name_in_another_process_takes_over(tmp_path: Path) -> None:
    with cluster(str(tmp_path / "catalog"), tmp_path / "out") as peers:
        old = peers.start("a")
        wait_until(lambda: peers.units() == {"a": 6}, "all units at the first")
        values = publish_all(peers.url, 20)
        wait_until(lambda: len(peers.seen(b"!")) == 20, "the events")
        new = peers.start("a")
        wait_until(lambda: peers.units() == {"a": 6}, "all units at the second")
        wait_until(lambda: peers.seen(b"?"), "the first to be told")
        assert "another process" in next(iter(peers.seen(b"?"))).decode()
        assert peers.seen(b"+") == dict.fromkeys(values, 1)
        for member in (old, new):
            member.tell("close")
            assert member.line() == "closed"
            member.finish()
