"""The short torture of shared groups on both catalogs, and proof that its accounting can fail."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.torture.replay import Death, Fault, Line
from tests.torture.run import new_folder
from tests.torture.shared_groups import Ordeal
from tests.torture.shared_run import torture_shared

FAULTS = 8


@pytest.mark.timeout(600)
def test_members_and_leaders_die_freeze_and_are_cut_off() -> None:
    folder = new_folder()
    seed = random.SystemRandom().randrange(1 << 32)
    result = torture_shared(("sqlite", "postgres"), FAULTS, seed, folder)
    where = f"seed {seed}; everything is kept in {folder}"
    assert result.findings == [], where
    assert result.faults >= FAULTS, where
    for outcome in result.outcomes:
        assert outcome.figures.events > 0, where
    shutil.rmtree(folder)


def lines(*texts: str) -> list[Line]:
    """Lines as members write them, one tick apart: ``a + 0-5``."""
    return [
        Line(at_ms * 1_000_000, *text.split(" ", 2)) for at_ms, text in enumerate(texts, start=1)
    ]


def ordeal(*published: str) -> Ordeal:
    made = Ordeal("sqlite", "", Path(), 0, random.Random(1))
    made.published = list(published)
    return made


def kinds(made: Ordeal, *texts: str) -> list[str]:
    return [finding.kind for finding in made.account(lines(*texts))[0]]


def test_a_run_as_it_should_be_has_no_findings() -> None:
    made = ordeal("0-1", "0-2", "1-3")
    made.killed = {"b"}
    told = ("a + 0-1", "a ! 0-1", "b + 0-2", "a + 0-2", "a ! 0-2", "a + 1-3", "a x 1-3", "b + 1-3")
    assert kinds(made, *told) == []


def test_what_is_missing_repeated_or_out_of_order_is_found() -> None:
    assert kinds(ordeal("0-1", "0-2"), "a + 0-1", "a ! 0-1") == ["missing"]
    assert kinds(ordeal("0-1"), "a + 0-1", "a ! 0-1", "b + 0-1", "b x 0-1") == ["repeat"]
    twice = ("a + 0-1", "b + 0-1", "a ! 0-1", "b ! 0-1")
    assert kinds(ordeal("0-1"), *twice) == ["acked twice"]
    swapped = ("a + 0-2", "a ! 0-2", "a + 0-1", "a ! 0-1")
    assert kinds(ordeal("0-1", "0-2"), *swapped) == ["order"]
    assert kinds(ordeal(), "a ? it broke") == ["member failed"]


def test_who_was_frozen_may_be_late_but_must_be_refused() -> None:
    late = ("a + 0-1", "a ! 0-1", "b + 0-1", "b x 0-1")
    made = ordeal("0-1")
    made.frozen = {"b"}
    assert kinds(made, *late) == []
    assert kinds(ordeal("0-1"), "b z 900 ms", *late) == []


def test_an_ack_that_was_refused_and_counts_is_found() -> None:
    assert kinds(ordeal("0-1"), "a + 0-1", "a x 0-1") == ["refused"]
    assert kinds(ordeal("0-1"), "a + 0-1", "b + 0-1", "b x 0-1") == ["unanswered"]


def test_replay_after_the_death_of_a_leader_is_measured_from_the_ack() -> None:
    made = ordeal("0-1", "0-2")
    made.published.append("0-0")
    made.leader_deaths = [Death(5_500_000)]
    told = ("a + 0-0", "a ! 0-0", "a + 0-1", "b + 0-2", "b x 0-2", "a + 0-1", "a ! 0-1", "b + 0-2")
    _, figures = made.account(lines(*told))
    assert (figures.leaders_killed, figures.leaders_killed_at_work) == (1, 1)
    assert figures.replayed == 1
    assert figures.replay_ms_max == 2.5
    assert figures.replay_ms_max_after == {}


def test_an_ack_that_another_fault_held_up_is_counted_apart() -> None:
    made = ordeal("0-0", "0-1")
    made.leader_deaths = [Death(4_500_000, "l")]
    told = ("a + 0-0", "a ! 0-0", "a + 0-1", "- - -", "a + 0-1", "a ! 0-1")
    for fault, replayed, after in (
        (Fault("cut", 2_500_000, 2_500_000, "a"), 0, {"cut": 1.5}),
        (Fault("cut", 4_000_000, 4_000_000, "l"), 0, {"cut": 1.5}),
        (Fault("terminate", 4_000_000, 4_000_000), 0, {"terminate": 1.5}),
        (Fault("freeze", 1_000_000, 3_500_000), 0, {"freeze": 1.5}),
        (Fault("cut", 2_500_000, 2_500_000, "b"), 1, {}),  # neither its own nor the leader's
        (Fault("cut", 1_500_000, 1_500_000, "a"), 1, {}),  # it was told of an ack since
        (Fault("cut", 4_600_000, 4_600_000, "a"), 1, {}),  # after the death
    ):
        made.disturbances = [fault]
        _, figures = made.account(lines(*told))
        assert (figures.replayed, figures.replay_ms_max_after) == (replayed, after), fault
