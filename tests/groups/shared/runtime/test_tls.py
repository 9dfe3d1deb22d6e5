"""Shared groups over TLS, between real processes: who is not trusted is kept out, the rest goes on.

The processes are ``headrace subscribe``, with what they print and what they say in files.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake

import headrace.sync
from headrace import TLS
from headrace.catalog import Tx
from headrace.groups.shared.admin import Groups
from headrace.groups.shared.core.settings import LeaderSettings
from headrace.groups.shared.runtime import directory, frames
from headrace.net import Target
from tests.net.certificates import Authority
from tests.support import ROOT, wait_until, whole_lines

TEXT = "$share/g/orders.>"
SETTINGS = LeaderSettings(tick_ms=25, resend_ms=100, lease_ttl_ms=2500, heartbeat_ms=400)


class Member:
    """A running ``headrace subscribe``."""

    def __init__(self, folder: Path, catalog: Path, name: str, tls: TLS | None) -> None:
        self.name = name
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        options = ["--session", name, "--catalog", str(catalog), "--json"]
        if tls is not None:
            options += ["--tls-cert", str(tls.certificate), "--tls-key", str(tls.key)]
            options += ["--tls-ca", str(tls.authority)]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "subscribe", TEXT, *options],
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            )
        wait_until(lambda: "subscribed" in self.said, f"{name} to subscribe")

    @property
    def said(self) -> str:
        return self._err.read_text()

    @property
    def values(self) -> list[str]:
        """The events that it was given."""
        return [json.loads(line)["value"] for line in whole_lines(self._out)]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Cluster:
    """Processes on one catalog, and a program that publishes and looks."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._catalog = folder / "data"
        self._stack = stack
        self.hr = stack.enter_context(headrace.sync.open(self._catalog, housekeeping=False))
        self.hr.create_stream("orders", ["orders.>"], segments=4)
        self.groups = Groups(self.hr.client.log)
        self.groups.declare("g", "orders.>", settings=SETTINGS)
        self.published = 0

    def start(self, name: str, tls: TLS | None) -> Member:
        member = Member(self._folder, self._catalog, name, tls)
        self._stack.callback(member.kill)
        return member

    def publish(self, count: int) -> None:
        numbers = range(self.published, self.published + count)
        for number in numbers:
            self.hr.publish(f"orders.{number}", str(number).encode(), key=str(number))
        self.published += count

    def wait_for_units(self, **counts: int) -> None:
        """Until each of these sessions has so many units."""

        def found() -> bool:
            owners = [unit.owner for unit in self.groups.get("g").units]
            return all(
                sum(owner is not None and owner.startswith(name) for owner in owners) == count
                for name, count in counts.items()
            )

        wait_until(found, f"units: {counts}")

    def leader(self) -> Target:
        """Where the leader listens."""
        node = self.groups.get("g").leader
        assert node is not None

        def look(tx: Tx) -> Target:
            address, secret = directory.find(tx, node), directory.secret(tx)
            assert address is not None
            assert secret is not None
            return Target(address.host, address.port, secret, address.tls)

        return self.hr.client.log.catalog.read(look)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def knock(target: Target, tls: ssl.SSLContext | None) -> None:
    """Try to get in, with the secret; refused."""

    async def dial() -> None:
        headers = {"Authorization": f"Bearer {target.secret}"}
        url = target.url(frames.PATH) if tls else f"ws://{target.host}:{target.port}{frames.PATH}"
        async with connect(url, additional_headers=headers, proxy=None, ssl=tls) as connection:
            await connection.recv()

    with pytest.raises((InvalidHandshake, OSError)):
        asyncio.run(dial())


def test_members_share_the_work_over_tls_and_others_are_kept_out(
    cluster: Cluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    elsewhere = Authority(tmp_path / "elsewhere", "elsewhere")
    first = cluster.start("first", authority.certify("first"))
    cluster.wait_for_units(first=4)
    leader = cluster.leader()
    assert leader.tls
    second = cluster.start("second", authority.certify("second"))
    cluster.wait_for_units(first=2, second=2)

    plain = cluster.start("plain", None)
    stranger = cluster.start("stranger", elsewhere.certify("stranger"))
    wait_until(lambda: "takes connections with TLS only" in plain.said, "plain to say why")
    wait_until(lambda: "its certificate is not trusted" in stranger.said, "stranger to say why")
    refused = "a connection is refused: "
    knock(leader, None)
    wait_until(lambda: refused + "it does not speak TLS" in first.said, "first to say why")
    context = ssl.create_default_context(cafile=authority.file)
    knock(leader, context)
    wait_until(lambda: refused + "it shows no certificate" in first.said, "first to say why")
    strange = elsewhere.certify("strange")
    context.load_cert_chain(strange.certificate, strange.key)
    knock(leader, context)
    wait_until(lambda: "its certificate is not trusted" in first.said, "first to say why")

    cluster.publish(200)
    wait_until(lambda: len(first.values + second.values) == 200, "all events")
    assert sorted(map(int, first.values + second.values)) == list(range(200))
    assert first.values
    assert second.values
    assert plain.values == stranger.values == []
    for member in (first, second, plain, stranger):
        assert leader.secret not in member.said
        assert member.process.poll() is None, "it waits for better times"


def test_who_is_not_trusted_does_not_lead_when_the_leader_dies(
    cluster: Cluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    first = cluster.start("first", authority.certify("first"))
    cluster.wait_for_units(first=4)
    plain = cluster.start("plain", None)
    wait_until(lambda: "takes connections with TLS only" in plain.said, "plain to say why")
    second = cluster.start("second", authority.certify("second"))
    cluster.wait_for_units(first=2, second=2)
    first.kill()
    cluster.publish(100)
    # What was in flight when its leader died may come again.
    wait_until(lambda: len(set(second.values)) == 100, "all events")
    assert cluster.leader().tls
    assert plain.values == []
