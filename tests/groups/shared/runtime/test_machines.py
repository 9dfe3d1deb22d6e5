"""Machines in network namespaces, one of which is cut off for a while."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

import headrace.sync
from tests.machines import Network, allowed, network, on, server_on
from tests.support import wait_until

pytestmark = pytest.mark.skipif(
    not allowed(), reason="this system does not allow network namespaces"
)

CUT_S = 5.0
PAUSE_S = 6.0
BACK_S = 6.0
"""3 s on a machine that has nothing else to do."""


class Member:
    """A program on a machine of its own, and when it did what."""

    def __init__(self, machine: str, url: str, name: str) -> None:
        self.machine = machine
        self.did: dict[str, list[float]] = {}
        self.acked: list[str] = []
        module = "tests.groups.shared.runtime.machine_member"
        self._process = subprocess.Popen(
            on(machine, sys.executable, "-m", module, url, name),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at, what, text = line.rstrip("\n").split(" ", 2)
            self.did.setdefault(what, []).append(float(at))
            if what == "acked":
                self.acked.append(text)

    def times(self, what: str) -> int:
        return len(self.did.get(what, ()))

    def since(self, what: str, at: float) -> bool:
        return self.did[what][-1] > at

    def longest_pause_s(self, what: str, since: float) -> float:
        times = [since, *(at for at in list(self.did[what]) if at > since), time.monotonic()]
        return max(after - before for before, after in pairwise(times))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def members(net: Network, count: int) -> Iterator[list[Member]]:
    """Members of one group that work, each on a machine."""
    with server_on(net) as (server, url):
        with headrace.sync.open(server.url) as hr:
            hr.create_stream("orders", ["orders.>"], segments=2 * count)
        found: list[Member] = []
        try:
            for number in range(count):
                found.append(Member(net.machine(), url, f"w{number}"))
                wait_until(lambda: found[-1].times("acked") > 5, "the first acks", 60)
            yield found
        finally:
            for member in found:
                member.end()


def test_a_machine_that_is_cut_off_stops_nobody_else_and_is_back_soon_after_it_heals() -> None:
    with network() as net, members(net, 2) as (well, cut_off):
        cut_at = time.monotonic()
        net.cut(cut_off.machine)
        wait_until(lambda: time.monotonic() - cut_at >= CUT_S, "the time")
        assert not cut_off.since("published", cut_at + 1)
        net.heal(cut_off.machine)
        healed_at = time.monotonic()
        back = ("published", "acked")
        wait_until(lambda: all(cut_off.since(what, healed_at) for what in back), "both", 60)
        assert time.monotonic() - healed_at < BACK_S
        for what in back:
            assert well.longest_pause_s(what, cut_at) < PAUSE_S
        counted = well.acked + cut_off.acked
        assert len(set(counted)) == len(counted)
