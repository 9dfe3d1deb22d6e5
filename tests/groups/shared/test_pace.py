"""When commits of a leader keep a distance, and when nobody has to wait."""

from __future__ import annotations

from headrace.groups.shared.pace import Pace


def test_many_who_do_not_wait_for_each_other_share_commits() -> None:
    pace = Pace()
    for ms in range(1000, 1400):
        pace.reported(f"b{ms % 200}", ms)
        pace.confirmed(f"b{ms % 200}", ms + 20)
    assert pace.busy


def test_few_reports_are_stored_at_once() -> None:
    pace = Pace()
    for ms in range(1000, 3000, 20):
        pace.reported(f"b{ms}", ms)
    assert not pace.busy


def test_who_waits_for_every_confirmation_is_not_held_up() -> None:
    pace = Pace()
    for ms in range(1000, 2000, 2):
        pace.reported("b", ms)
        pace.confirmed("b", ms + 1)
    assert not pace.busy
