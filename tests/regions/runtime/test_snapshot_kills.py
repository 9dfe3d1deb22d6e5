"""SIGKILL in the middle of each round of a snapshot: it is taken anew, and nothing is skipped."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from headrace.catalog import leases
from headrace.groups.partitioned.lifecycle import create_static
from headrace.regions.records import AGENT_LEASE
from headrace.regions.taking import list_snapshots
from tests.regions.runtime.test_processes import Start
from tests.regions.runtime.test_processes import start as start
from tests.regions.runtime.test_snapshots import ONE, SnapshotPlace, enable, exchange, head_of
from tests.regions.runtime.world import assert_same, linked
from tests.support import wait_until


class Killed:
    """A region whose agent and driver are one real process, and those that are stepped by hand."""

    def __init__(self, place: SnapshotPlace, others: list[SnapshotPlace], start: Start) -> None:
        self.place, self.others, self._start = place, others, start
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = self._start(self.place.url)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.place.log.catalog.write(lambda tx: leases.fence(tx, AGENT_LEASE))  # not waited for

    def answer(self) -> None:
        """The other regions copy, and do what is due, once."""
        for each in self.others:
            names = [place.name for place in (self.place, *self.others) if place is not each]
            each.pull(*names)
            each.agent.step()

    def under_way(self, phase: str, not_these: set[str]) -> str:
        """The id of a snapshot of the process that has come to a phase."""

        def look() -> str | None:
            for each in self.place.state().pending:
                if each.phase == phase and each.snapshot_id not in not_these:
                    return each.snapshot_id
            return None

        return str(wait_until(look, phase, 30))


@pytest.mark.parametrize("phase", ["first_round", "second_round"])
def test_an_agent_killed_in_a_round_takes_the_snapshot_anew(
    request: pytest.FixtureRequest, tmp_path: Path, start: Start, phase: str
) -> None:
    """Both rounds need three regions; the one that is killed is on either database."""
    postgres = phase == "second_round"
    url = str(request.getfixturevalue("postgres_url")) if postgres else str(tmp_path / "eu")
    eu = SnapshotPlace("eu", url.replace("postgres:@", "postgres@"))
    us, ap = (SnapshotPlace(name, str(tmp_path / name)) for name in ("us", "ap"))
    world = Killed(eu, [us, ap], start)
    try:
        linked([eu, us, ap], segments=1, config=ONE)
        create_static(eu.log, "orders", "billing", max_members=1, members=["m1"])
        enable(eu)
        for _ in range(3):
            eu.agent.step()
            world.answer()  # both know of the group
        eu.publish(3)
        world.start()
        asked = world.under_way("first_round", set())
        if phase == "second_round":
            world.answer()
            assert world.under_way(phase, set()) == asked
        world.kill()  # nobody has answered this round
        us.publish(2)
        world.answer()
        assert eu.state().completed == 0
        eu.restart()

        def is_complete() -> bool:
            eu.agent.step()
            eu.pull("us", "ap")
            world.answer()
            return eu.state().completed > 0

        wait_until(is_complete, "another snapshot", 30)
        assert asked not in [each.snapshot_id for each in list_snapshots(eu.log, "orders")]
        assert len(us.unacked()) == len(ap.unacked()) == 5
        eu.ack(floor=head_of(eu))
        exchange(eu, us, ap)
        assert us.unacked() == ap.unacked() == []
        assert_same([eu, us, ap])
        assert eu.state().last_abort == ""  # nobody was silent: who asked was not there any more
    finally:
        for place in (eu, us, ap):
            place.close()


def test_a_region_killed_while_it_answers_answers_later(tmp_path: Path, start: Start) -> None:
    """Its driver has copied the request, and its agent may have answered or not."""
    eu, us = (SnapshotPlace(name, str(tmp_path / name)) for name in ("eu", "us"))
    world = Killed(us, [eu], start)
    try:
        linked([eu, us], segments=1, config=ONE)
        create_static(eu.log, "orders", "billing", max_members=1, members=["m1"])
        enable(eu)
        us.agent.step()
        us.agent.step()
        for at in (1, 2):
            eu.publish(2)
            eu.agent.step()  # it asks, again if nobody answered before
            before = head_of(us)
            world.start()
            wait_until(lambda before=before: head_of(us) > before, "a copy", 30)  # type: ignore[misc]
            world.kill()
            eu.pull("us")
            assert len(eu.unacked()) == 2 * at
        eu.ack(floor=head_of(eu))
        us.restart()
        exchange(eu, us)
        assert us.unacked() == []
        assert eu.state().completed >= 1
        assert_same([eu, us])
    finally:
        eu.close()
        us.close()
