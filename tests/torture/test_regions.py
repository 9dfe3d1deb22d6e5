"""The torture of regions, in short; and an account that finds what it is there for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.region_account import Line, Loss, Tail, judge
from tests.torture.regions import Kind, torture_regions

PUBLISHED = ("eu-1-0", "eu-1-1", "us-1-0")


def course(*told: str) -> list[Line]:
    """``region what value``, one after the other."""
    return [
        Line(at, what, value, region)
        for at, (region, what, value) in enumerate(each.split() for each in told)
    ]


WELL = (
    "eu got eu-1-0",
    "eu acked eu-1-0",
    "us got us-1-0",
    "us acked us-1-0",
    "us got eu-1-1",
    "us acked eu-1-1",
)


def test_what_is_lost_again_or_out_of_order_is_found() -> None:
    assert judge(PUBLISHED, course(*WELL)).findings == ()
    assert "given to nobody" in judge(PUBLISHED, course(*WELL[:4])).findings[0]
    assert "never acked" in judge(PUBLISHED, course(*WELL[:5])).findings[0]
    assert judge(PUBLISHED, course(*WELL[:5]), (), 1).findings == ()
    assert "again" in judge(PUBLISHED, course(*WELL, "us got eu-1-0")).findings[0]
    early = ("us got eu-1-1", *WELL[:4], "us acked eu-1-1")
    assert "out of order" in judge(PUBLISHED, course(*early)).findings[0]
    unknown = judge(PUBLISHED, course(*WELL, "us got eu-9-9"), (), 1)
    assert "never published" in unknown.findings[0]


def test_a_loss_excuses_what_had_not_crossed_and_nothing_else() -> None:
    again = course(*WELL, "us got eu-1-0", "us acked eu-1-0")
    unknown = (Loss(5, "us", frozenset()),)
    assert judge(PUBLISHED, again, unknown).findings == ()
    assert judge(PUBLISHED, again, unknown).again == 1
    crossed = (Loss(5, "us", frozenset({"eu-1-0"})),)
    assert "was known to be acked" in judge(PUBLISHED, again, crossed).findings[0]
    assert "again" in judge(PUBLISHED, again, (Loss(5, "eu", frozenset()),)).findings[0]
    twice = course(*WELL, "us got eu-1-0", "us acked eu-1-0", "us got eu-1-0")
    assert "where it was acked" in judge(PUBLISHED, twice, unknown).findings[0]


def test_a_move_by_snapshot_excuses_what_was_acked_while_it_went_on() -> None:
    """Acked in eu after the command (3), given again in us after it: us could not know of it."""
    moved = course(
        *("eu got eu-1-0", "eu acked eu-1-0", "eu got eu-1-1", "eu got us-1-0", "eu acked eu-1-1"),
        *("eu acked us-1-0", "us got eu-1-1", "us acked eu-1-1"),
    )
    assert "again" in judge(PUBLISHED, moved, (Loss(3, "us", frozenset()),)).findings[0]
    by_snapshot = (Loss(3, "us", frozenset(), 6),)
    assert judge(PUBLISHED, moved, by_snapshot).findings == ()
    assert judge(PUBLISHED, moved, by_snapshot).again == 1
    crossed = (Loss(3, "us", frozenset({"eu-1-1"}), 6),)
    assert "was known to be acked" in judge(PUBLISHED, moved, crossed).findings[0]
    back = [*moved, Line(9, "got", "eu-1-1", "eu")]
    assert "where it was acked" in judge(PUBLISHED, back, by_snapshot).findings[0]


def test_a_journal_is_counted_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "eu.journal"
    tail = Tail(path)
    assert tail.acked() == 0
    path.write_bytes(b"1 got eu-1-0\n2 acked eu-1-0\n3 ack")
    assert tail.acked() == 1
    with path.open("ab") as journal:
        journal.write(b"ed eu-1-1\n4 refused eu-1-2\n")
    assert tail.acked() == 2


@pytest.mark.parametrize("kind", ["static", "shared", "reader"])
def test_groups_move_between_regions_while_programs_die(tmp_path: Path, kind: Kind) -> None:
    outcome = torture_regions(kind, 3, 3, tmp_path)
    assert outcome.counted.findings == ()
    assert outcome.switches == 3
    assert sum(outcome.faults.values()) == 1


def test_a_group_by_snapshot_moves_between_regions_while_programs_die(tmp_path: Path) -> None:
    outcome = torture_regions("static", 3, 3, tmp_path, mode="snapshot")
    assert outcome.counted.findings == ()
    assert outcome.switches == 3
    assert sum(outcome.faults.values()) == 1
