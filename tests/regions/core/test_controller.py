"""The snapshot controller, answer by answer."""

from __future__ import annotations

import pytest

from headrace.errors import (
    RegionError,
    SnapshotRefusedError,
    StaleResponseError,
    UnexpectedResponseError,
    UnknownRegionError,
)
from headrace.regions.core.controller import TRANSITIONS, SnapshotController, SnapshotPhase
from headrace.regions.core.effects import (
    AbortReason,
    Append,
    AtRisk,
    RegionEffect,
    SkipReason,
    SnapshotAborted,
    SnapshotSettings,
    SnapshotSkipped,
)
from headrace.regions.core.markers import (
    LaneEnd,
    RegionPosition,
    RequestMarker,
    ResponseMarker,
    SnapshotMarker,
)

SETTINGS = SnapshotSettings(interval_ms=1000, timeout_ms=30_000, pending_max=2)
SEEN = (LaneEnd("a", 4), LaneEnd("b", 2))


def controller(*members: str) -> SnapshotController:
    made = SnapshotController("a", members, SETTINGS)
    made.traffic()
    return made


def answer(
    made: SnapshotController, region: str, position: int, round: int = 1, *, at: int = 100
) -> list[RegionEffect]:
    return made.responded(ResponseMarker("S1", "a", round, region, position), at, SEEN)


def snapshot(effects: list[RegionEffect]) -> SnapshotMarker:
    (effect,) = effects
    assert isinstance(effect, Append)
    assert isinstance(effect.marker, SnapshotMarker)
    return effect.marker


def test_one_remote_region_takes_one_round() -> None:
    made = controller("b")
    assert made.start("S1", 0) == [Append(RequestMarker("S1", "a", 1))]
    taken = snapshot(answer(made, "b", 7, at=12))
    assert taken == SnapshotMarker("S1", 12, (RegionPosition("b", 7),), SEEN)
    assert made.pending() == {}
    assert made.completed == 1


def test_several_take_two_rounds_with_positions_of_the_first() -> None:
    made = controller("b", "c")
    made.start("S1", 0)
    assert answer(made, "c", 5) == []
    assert answer(made, "b", 6) == [Append(RequestMarker("S1", "a", 2))]
    assert made.pending() == {"S1": (SnapshotPhase.SECOND_ROUND, ("b", "c"))}
    assert answer(made, "b", 60, 2) == []
    taken = snapshot(answer(made, "c", 50, 2, at=31))
    assert taken.local == 31
    assert taken.positions == (RegionPosition("b", 6), RegionPosition("c", 5))


def test_request_is_answered_with_its_place_every_time_it_comes() -> None:
    made = controller("b")
    for position in (8, 11):
        response = ResponseMarker("X", "b", 2, "a", position)
        assert made.requested(RequestMarker("X", "b", 2), position) == [Append(response)]
    assert made.requested(RequestMarker("X", "a", 1), 3) == []


@pytest.mark.parametrize(
    ("response", "error", "why"),
    [
        (ResponseMarker("S1", "a", 1, "b", 9), StaleResponseError, "that round is over"),
        (ResponseMarker("S1", "a", 2, "c", 9), StaleResponseError, "has answered this round"),
        (ResponseMarker("S9", "a", 1, "b", 9), StaleResponseError, "completed or aborted"),
        (ResponseMarker("S1", "a", 2, "d", 9), UnknownRegionError, "no member when it began"),
        (ResponseMarker("S1", "c", 2, "b", 9), UnexpectedResponseError, "c had asked"),
    ],
)
def test_response_that_does_not_count_is_refused_and_changes_nothing(
    response: ResponseMarker, error: type[RegionError], why: str
) -> None:
    made = controller("b", "c")
    made.start("S1", 0)
    answer(made, "b", 6)
    answer(made, "c", 5)
    answer(made, "c", 50, 2)
    before = made.pending()
    with pytest.raises(error, match=why) as refused:
        made.responded(response, 99, SEEN)
    assert response.snapshot_id in refused.value.state
    assert made.pending() == before
    assert snapshot(answer(made, "b", 60, 2, at=40)).positions[0].position == 6


def test_round_ahead_of_its_request_is_refused() -> None:
    made = controller("b", "c")
    made.start("S1", 0)
    with pytest.raises(UnexpectedResponseError, match="has not begun"):
        answer(made, "b", 6, 2)


def test_change_of_members_aborts_what_is_under_way() -> None:
    made = controller("b", "c")
    made.start("S1", 0)
    answer(made, "b", 6)
    assert made.members_changed(["c", "b"]) == []
    aborted = made.members_changed(["b", "c", "d"])
    assert aborted == [SnapshotAborted("S1", AbortReason.MEMBERS, ("c",))]
    with pytest.raises(StaleResponseError):
        answer(made, "c", 5)
    assert made.members == ("b", "c", "d")
    assert (made.aborted, made.completed) == (1, 0)


def test_timeout_aborts_and_the_next_tick_tries_again() -> None:
    made = controller("b")
    made.start("S1", 0)
    assert made.tick("S2", 29_999, ["b"]) == [SnapshotSkipped(SkipReason.PENDING, ("b",))]
    assert made.tick("S2", 30_000, ["b"]) == [
        SnapshotAborted("S1", AbortReason.TIMEOUT, ("b",)),
        Append(RequestMarker("S2", "a", 1)),
    ]


def test_no_traffic_no_snapshot() -> None:
    made = SnapshotController("a", ["b"], SETTINGS)
    quiet = [SnapshotSkipped(SkipReason.NO_TRAFFIC)]
    assert made.tick("S0", 0, ["b"]) == quiet
    made.traffic()
    assert made.tick("S1", 1000, ["b"]) == [Append(RequestMarker("S1", "a", 1))]
    made.traffic()  # after the start: the next one must cover it
    answer(made, "b", 3)
    assert made.tick("S1", 2000, ["b"]) == [Append(RequestMarker("S1", "a", 1))]
    answer(made, "b", 5)
    assert made.tick("S3", 3000, ["b"]) == quiet


def test_aborted_snapshot_covers_no_traffic() -> None:
    made = controller("b")
    made.start("S1", 0)
    made.expire(30_000)
    assert isinstance(made.tick("S2", 31_000, ["b"])[0], Append)


@pytest.mark.parametrize(
    ("members", "now_ms", "connected", "skipped"),
    [
        ((), 5000, (), SnapshotSkipped(SkipReason.NO_MEMBERS)),
        (("b",), 1999, ("b",), SnapshotSkipped(SkipReason.TOO_SOON)),
        (("b", "c", "d"), 5000, ("c",), SnapshotSkipped(SkipReason.DISCONNECTED, ("b", "d"))),
    ],
)
def test_reason_for_no_snapshot_is_told(
    members: tuple[str, ...], now_ms: int, connected: tuple[str, ...], skipped: SnapshotSkipped
) -> None:
    made = controller("x")
    made.start("S0", 1000)
    made.members_changed(members)
    assert made.tick("S1", now_ms, connected) == [skipped]


def test_start_is_refused_without_members_twice_or_too_often() -> None:
    with pytest.raises(SnapshotRefusedError, match="no other region"):
        controller().start("S1", 0)
    made = controller("b")
    made.start("S1", 0)
    with pytest.raises(SnapshotRefusedError, match="its id is taken"):
        made.start("S1", 0)
    made.start("S2", 0)
    with pytest.raises(SnapshotRefusedError, match="as many as may be"):
        made.start("S3", 0)
    assert list(made.pending()) == ["S1", "S2"]


def test_region_is_no_member_of_its_own() -> None:
    with pytest.raises(UnknownRegionError):
        SnapshotController("a", ["a", "b"])
    made = controller("b")
    with pytest.raises(UnknownRegionError):
        made.members_changed(["a"])
    assert made.members == ("b",)


def test_forced_snapshot_of_one_answer_tells_what_is_at_risk() -> None:
    made = controller("b", "c")
    made.start("S1", 0)
    answer(made, "c", 5, at=20)
    forced = made.force("S1")
    assert forced.missing == ("b",)
    assert forced.at_risk == (AtRisk("c", 5, "b", 2),)
    assert snapshot(list(forced.effects)) == SnapshotMarker(
        "S1", 20, (RegionPosition("c", 5),), SEEN, ("b",)
    )


def test_forced_snapshot_of_several_answers_still_holds_the_second_round() -> None:
    made = controller("b", "c", "d")
    made.start("S1", 0)
    answer(made, "b", 5)
    answer(made, "c", 6)
    assert made.force("S1").effects == (Append(RequestMarker("S1", "a", 2)),)
    assert answer(made, "c", 60, 2) == []
    forced = made.force("S1")
    assert forced.missing == ("b", "d")
    assert snapshot(list(forced.effects)).positions == (RegionPosition("c", 6),)


def test_forcing_without_any_answer_is_refused() -> None:
    made = controller("b", "c")
    with pytest.raises(SnapshotRefusedError, match="nothing to force"):
        made.force("S1")
    made.start("S1", 0)
    with pytest.raises(SnapshotRefusedError, match="no region has answered"):
        made.force("S1")
    assert made.pending() == {"S1": (SnapshotPhase.FIRST_ROUND, ("b", "c"))}


def test_every_phase_but_the_first_is_reached_and_endings_end() -> None:
    targets = set(TRANSITIONS.values())
    assert targets == set(SnapshotPhase) - {SnapshotPhase.IDLE}
    sources = {phase for phase, _ in TRANSITIONS}
    assert sources.isdisjoint({SnapshotPhase.COMPLETE, SnapshotPhase.ABORTED})


def test_region_that_joins_an_idle_stream_is_served_by_a_snapshot() -> None:
    controller = SnapshotController("a", ["b"], SnapshotSettings(interval_ms=1))
    assert skipped(controller.tick("s1", 1_000, ["b"])) is SkipReason.NO_TRAFFIC
    controller.members_changed(["b", "c"])
    (effect,) = controller.tick("s2", 2_000, ["b", "c"])
    assert isinstance(effect, Append)


def skipped(effects: list[RegionEffect]) -> SkipReason | None:
    (effect,) = effects
    return effect.reason if isinstance(effect, SnapshotSkipped) else None
