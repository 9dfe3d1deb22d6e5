"""When commits of a leader keep a distance, and when nobody has to wait."""

from __future__ import annotations

from headrace.groups.shared.core.pace import Pace


def report(pace: Pace, borrower: str, now_ms: int) -> None:
    pace.reported(borrower, now_ms)


def test_many_who_do_not_wait_for_each_other_share_commits() -> None:
    pace = Pace()
    for ms in range(1000, 1400):
        report(pace, f"b{ms % 200}", ms)
        pace.confirmed([(f"b{ms % 200}", 1)], ms + 20)
    assert pace.busy


def test_few_reports_are_stored_at_once() -> None:
    pace = Pace()
    for ms in range(1000, 3000, 20):
        report(pace, f"b{ms}", ms)
    assert not pace.busy


def test_who_waits_for_every_confirmation_is_not_held_up() -> None:
    pace = Pace()
    for ms in range(1000, 2000, 2):
        report(pace, "b", ms)
        pace.confirmed([("b", 1)], ms + 1)
    assert not pace.busy


def test_of_commits_that_keep_their_distance_one_in_four_tells_who_waits() -> None:
    pace = Pace()
    judged = []
    for _ in range(8):
        pace.gather()
        judged.append(pace.judging)
    assert judged == [False, False, False, True] * 2
    pace.gather_if_busy()
    assert pace.judging, "each report is heard when it comes"
