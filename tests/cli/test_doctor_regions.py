"""``headrace doctor`` on regions: what is wrong between them, and the next step."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.catalog import schema
from headrace.catalog.stream_config import Consumed, Groups, Limits
from headrace.catalog.streams import StreamConfig
from headrace.cli import run
from headrace.cli.checks import Check
from headrace.cli.doctor_regions import check_regions
from headrace.errors import DamagedBatchError
from headrace.groups.partitioned.lifecycle import create_static
from headrace.log.compact_policy import CompactionPolicy
from headrace.regions import enabling
from headrace.regions.health import (
    check_agent,
    check_clock,
    check_retention,
    check_snapshot,
    check_version,
)
from headrace.regions.losing import set_state
from headrace.regions.records import AGENT_LEASE
from headrace.regions.status import SnapshotStatus
from tests.regions.runtime.test_snapshots import SnapshotPlace
from tests.regions.runtime.world import Place, linked


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    eu, us = Place("eu", str(tmp_path / "eu")), Place("us", str(tmp_path / "us"))
    linked([eu, us], segments=1)
    for each in (eu, us):
        each.log.catalog.leases.acquire(AGENT_LEASE, "test", 60_000)
    yield eu, us
    for each in (eu, us):
        each.close()


def wrong(place: Place) -> list[Check]:
    return [each for each in check_regions(place.log) if each.state != "ok"]


def only(place: Place) -> Check:
    (found,) = wrong(place)
    assert found.mend or "copies nothing from here" in found.found
    return found


def test_all_is_well_between_regions(
    two: tuple[Place, Place], capsys: pytest.CaptureFixture[str]
) -> None:
    eu, us = two
    us.publish(3)
    eu.pull("us")
    assert wrong(eu) == []
    told = [f"{each.name}: {each.found}" for each in check_regions(eu.log)]
    assert told == [
        "region: eu, life 1; 1 linked streams",
        "agent: an agent runs here",
        f"region us: answers, life 1, at {us.url}",
        "agent: an agent runs in us",
        "orders from us: in step",
    ]
    assert run(["doctor", "--catalog", eu.url]) == 0
    assert "in step" in capsys.readouterr().out


def test_a_catalog_that_is_no_region_is_not_asked(tmp_path: Path) -> None:
    place = Place("eu", str(tmp_path / "eu"))
    assert wrong(place) == []
    place.log.catalog.write(lambda tx: tx.execute("DELETE FROM meta WHERE key = 'region'"))
    assert list(check_regions(place.log)) == []
    place.close()


def test_nobody_works_for_a_region(two: tuple[Place, Place]) -> None:
    eu, us = two
    for each in (eu, us):
        each.log.catalog.leases.release(each.log.catalog.leases.get(AGENT_LEASE))  # type: ignore[arg-type]
    assert [(each.state, each.mend) for each in wrong(eu)] == [
        ("failed", "start one here with: headrace region run"),
        ("warning", "start one in us with: headrace region run"),
    ]
    assert "Spark" in check_agent("eu", here=True, agent=True, pipeline=True).found


def test_a_region_that_does_not_answer_is_named_with_what_to_do(
    two: tuple[Place, Place], tmp_path: Path
) -> None:
    eu, us = two
    us.log.catalog.close()
    shutil.move(tmp_path / "us", tmp_path / "gone")
    found = wrong(eu)[0]
    assert (found.name, found.state) == ("region us", "failed")
    assert "headrace region fail-over --lost us" in found.mend
    shutil.move(tmp_path / "gone", tmp_path / "us")


def test_a_link_from_one_side_and_one_that_is_paused(two: tuple[Place, Place]) -> None:
    eu, us = two
    set_state(us.log, "eu", "paused")
    assert only(eu).found == "us copies nothing from here: eu is paused there"
    assert only(us).mend == "headrace region resume eu"
    assert run(["--catalog", us.url, "region", "unlink", "orders"]) == 0
    found = only(eu)
    assert found.found == "us does not link it to eu: nothing comes from there"
    assert f"headrace --catalog {us.url} region link orders eu=" in found.mend


def test_streams_that_are_no_longer_the_same(two: tuple[Place, Place]) -> None:
    eu, us = two
    us.log.catalog.write(lambda tx: tx.execute("UPDATE segments SET range_hi = range_hi - 1"))
    assert "segment 0 has another key range there" in only(eu).found


def test_two_regions_on_one_catalog(two: tuple[Place, Place]) -> None:
    eu, us = two
    same = eu.log.catalog.read(lambda tx: schema.get_setting(tx, "catalog_id"))
    us.log.catalog.write(lambda tx: schema.put_setting(tx, "catalog_id", str(same)))
    assert "one is a copy of the other" in only(eu).found


def test_a_gap_is_told(two: tuple[Place, Place]) -> None:
    eu, us = two
    us.publish(5)
    eu.pull("us")
    us.publish(5)
    us.publish(5)
    us.log.trim("orders", {0: 10})
    eu.pull("us")
    assert only(eu).found == "5 events were removed in us before they came: a gap"


def test_a_region_restored_from_a_copy(two: tuple[Place, Place], tmp_path: Path) -> None:
    eu, us = two
    shutil.copytree(tmp_path / "us", tmp_path / "copy")
    us.publish(5)
    eu.pull("us")
    us.log.catalog.close()
    shutil.rmtree(tmp_path / "us")
    shutil.copytree(tmp_path / "copy", tmp_path / "us")
    failed = next(each for each in wrong(eu) if each.state == "failed")
    assert failed.mend.endswith(f"headrace --catalog {us.url} region renew")


def test_files_that_cannot_be_read(two: tuple[Place, Place], tmp_path: Path) -> None:
    eu, us = two
    us.publish(5)
    us.publish(5)
    us.log.compact("orders", CompactionPolicy(min_age_s=0, min_batches=2))
    for path in (tmp_path / "us" / "store").rglob("*"):
        if path.is_file():
            path.rename(path.with_suffix(".gone"))
    with pytest.raises(DamagedBatchError, match="is missing"):
        eu.pull("us")
    found = only(eu)
    assert found.found.startswith("it cannot be read")
    assert "read every table (SELECT), and its store" in found.mend


def test_what_waits_longer_than_it_is_kept(two: tuple[Place, Place]) -> None:
    eu, us = two
    us.log.configure_stream("orders", retention=Limits(events=8))
    eu.log.configure_stream("orders", retention=Limits(events=8))
    us.publish(3)
    assert wrong(eu) == []
    us.publish(3)
    found = only(eu)
    assert (found.name, found.state) == ("retention of orders/0", "warning")
    assert "6 offsets wait in us, and 8 are kept" in found.found
    (late,) = check_retention("orders/0", "us", Groups(cap=Limits(age_s=60)), 40.0, 1)
    assert "the first is 40 s old and 60 s are kept" in late.found
    assert not list(check_retention("orders/0", "us", Limits(age_s=60), 20.0, 1))
    assert not list(check_retention("orders/0", "us", Consumed(), 1e9, 10**9))


def test_clocks_and_versions_that_are_apart() -> None:
    assert [each.found for each in check_clock("us", 2.5)] == [
        "the clock of us is 2.5 s ahead of the one here"
    ]
    assert "behind" in next(check_clock("us", -2.0)).found
    assert not list(check_clock("us", 0.3))
    older, newer = (next(check_version("us", schema.VERSION + by)) for by in (-1, 1))
    assert older.mend.startswith("upgrade Headrace in us")
    assert newer.mend.startswith("upgrade Headrace here")
    assert not list(check_version("us", schema.VERSION))


def test_a_schema_that_is_a_version_newer_is_told(two: tuple[Place, Place]) -> None:
    eu, us = two
    newer = str(schema.VERSION + 1)
    us.log.catalog.write(lambda tx: schema.put_setting(tx, "schema_version", newer))
    assert only(eu).name == "schema"


def test_snapshots_that_are_old_are_told_with_the_reason(tmp_path: Path) -> None:
    def found(**given: object) -> tuple[str, str]:
        (one,) = check_snapshot(SnapshotStatus(stream="orders", segment=0, **given))  # type: ignore[arg-type]
        return one.state, one.found

    assert found() == ("ok", "none was needed yet")
    assert found(age_s=3.0, last_skip="a member cannot be reached: us")[0] == "ok"
    assert found(age_s=300.0) == ("ok", "the last 300 s ago")  # without traffic none is due
    old = found(age_s=90.0, last_skip="a member cannot be reached: us")
    assert old == ("warning", "the last is 90 s old: a member cannot be reached: us")
    waits = found(phase="first_round", pending_s=70.0, waiting_for=("us",))
    assert waits == ("warning", "there is none yet: one waits for us since 70 s")

    eu, us = (SnapshotPlace(name, str(tmp_path / name)) for name in ("eu", "us"))
    linked([eu, us], segments=1, config=StreamConfig(subjects=("orders.>",), partitions=1))
    create_static(eu.log, "orders", "billing", max_members=1, members=["m1"])
    enabling.enable(eu.log, "orders.billing", eu.neighbours, mode="snapshot")
    eu.publish(1)
    eu.agent.step()
    eu.agent.step()
    told = {each.name: each for each in wrong(eu)}
    assert "a member cannot be reached: us" in told["snapshots of orders/0"].found
    eu.close()
    us.close()
