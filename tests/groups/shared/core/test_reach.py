"""Which way messages to a peer take, and when something is said about it."""

from __future__ import annotations

from headrace.groups.shared.core.reach import (
    DIAL_AGAIN_MS,
    FORGET_MS,
    SAY_AFTER_MS,
    WRITE_AFTER_MS,
    Reachability,
    Way,
)


def test_a_peer_that_is_only_restarting_is_dialled() -> None:
    reach = Reachability()
    assert reach.way("p", 0) is Way.DIAL
    reach.failed("p", "refused", 0, 0)
    assert reach.way("p", WRITE_AFTER_MS - 1) is Way.DIAL
    assert not reach.connected("p")
    assert reach.way("p", 10 * WRITE_AFTER_MS) is Way.DIAL


def test_a_peer_that_cannot_be_dialled_is_written_to_and_dialled_from_time_to_time() -> None:
    reach = Reachability()
    reach.failed("p", "no answer", 0, 3000)
    assert reach.way("p", 3000) is Way.WRITE
    assert reach.way("p", 3000 + DIAL_AGAIN_MS) is Way.BOTH
    assert reach.way("p", 3001 + DIAL_AGAIN_MS) is Way.WRITE
    assert reach.why("p") == "no answer"
    assert reach.way("other", 3000) is Way.DIAL
    assert not reach.connected("p")
    assert (reach.way("p", 3002 + DIAL_AGAIN_MS), reach.why("p")) == (Way.DIAL, "")


def test_it_is_said_once_when_the_peer_has_written_and_so_is_alive() -> None:
    reach = Reachability()
    reach.failed("p", "no answer", 0, 3000)
    assert reach.complaint("p", 3000) is None
    reach.heard("p")
    found = reach.complaint("p", 3100)
    assert found is not None
    assert (found.why, found.heard) == ("no answer", True)
    assert reach.complaint("p", 60_000) is None
    assert reach.connected("p")


def test_it_is_said_after_a_while_of_a_peer_that_does_not_write_either() -> None:
    reach = Reachability()
    for now_ms in range(1000, SAY_AFTER_MS, 1000):
        reach.failed("p", "refused", now_ms, now_ms)
        assert reach.complaint("p", now_ms) is None
    found = reach.complaint("p", 1000 + SAY_AFTER_MS)
    assert found is not None
    assert not found.heard


def test_peers_that_nobody_asks_for_are_forgotten() -> None:
    reach = Reachability()
    reach.failed("p", "refused", 0, 0)
    reach.failed("q", "refused", FORGET_MS, FORGET_MS)
    assert reach.why("p") == ""
    assert reach.why("q") == "refused"
