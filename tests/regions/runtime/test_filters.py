"""Links with a filter: what passes it crosses, the rest stays where it was published."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import sync
from headrace.catalog import Tx, lane_filters, lanes, streams
from headrace.catalog.streams import StreamConfig
from headrace.errors import InvalidFilterError, LinkError
from headrace.log import files, limits
from headrace.log.events import Event
from headrace.log.given import to_batch
from headrace.log.open import open_log
from headrace.regions import leaving, promoting
from headrace.regions.health import examine
from headrace.regions.linking import link, step_for
from headrace.regions.records import links
from headrace.regions.renewing import renew_region
from headrace.regions.status import status
from headrace.spark import staging
from headrace.spark.staged_write import StagedWrite
from headrace.spark.staging import Part, Stager
from headrace.store import Store
from tests.regions.runtime.world import ORDERS, Place, graph, making

WORLD = "orders.world.>"
Make = Callable[[str], Place]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes regions, each on SQLite."""
    with making(tmp_path) as make:
        yield make


def joined(eu: Place, *others: Place, writers: str = "all", backfill: str = "all") -> None:
    for other in others:
        more = {"writers": writers, "backfill": backfill, "filter": WORLD}
        link(eu.log, "orders", other.name, here=eu.url, catalog=other.url, **more)  # type: ignore[arg-type]


def mixed(count: int, size: int = 0) -> list[Event]:
    """Events of few keys; of each key some cross and some stay."""
    rng = random.Random(count)
    return [
        Event(
            subject=f"orders.{rng.choice(('world', 'local'))}.{at % 5}",
            key=str(at % 3),
            value=b"%d" % at + b"." * size,
        )
        for at in range(count)
    ]


def crossing(given: list[Event]) -> list[bytes]:
    return [event.value for event in given if event.subject.startswith("orders.world.")]


def held(place: Place) -> dict[str, list[bytes]]:
    """The values of each lane, in the order of the log; every lane is dense."""
    found: dict[str, list[bytes]] = {}
    for rows in place.origins().values():
        ends: dict[str, int] = {}
        for lane, sequence, value in rows:
            assert sequence == ends.get(lane, sequence)
            ends[lane] = sequence + 1
            found.setdefault(lane, []).append(value)
    return found


@pytest.mark.parametrize("in_files", [False, True])
def test_what_passes_crosses_in_order_and_the_rest_stays(make: Make, in_files: bool) -> None:
    eu, us, ap = make("eu"), make("us"), make("ap")
    eu.log.create_stream("orders", ORDERS, 1)
    joined(eu, us, ap)
    given = mixed(900, 2 * limits.INLINE_BYTES // 900 if in_files else 0)
    eu.log.append("orders", given)
    us.log.append("orders", given[:50])
    for place, other in ((us, eu), (eu, us)):
        place.pull(other.name)
    ap.pull("eu", "us")
    passed, few = crossing(given), crossing(given[:50])
    stayed = [event.value for event in given if event.value not in set(passed)]
    assert held(eu) == {"eu": passed, "eu!": stayed, "us": few}
    assert held(ap) == {"eu": passed, "us": few}
    assert held(us)["eu"] == passed
    assert [value for _, _, value in eu.origins()[0]][:900] == [each.value for each in given]


def test_every_way_of_publishing_is_judged(make: Make) -> None:
    eu, us = make("eu"), make("us")
    eu.log.create_stream("orders", ORDERS, 2)
    joined(eu, us)
    given = mixed(40)
    table = to_batch(given[:20])
    with sync.open(eu.url) as hr:
        for event in given[:10]:
            hr.publish(event.subject, event.value, key=event.key)
        hr.run(hr.client.publish(given[10].subject, given[10].value, key=given[10].key))
        hr.append("orders", pa.table(table).slice(11, 5))
        with hr.transaction() as tx:
            for event in given[16:20]:
                tx.publish(event.subject, event.value, key=event.key)
        with hr.appender("orders") as appender:
            appender.append(given[20:30])
            for event in given[30:]:
                appender.append(event)
        hr.publish("orders.world.1", b"named", regions=["us"])
        hr.publish("orders.local.1", b"named too", regions=["us"])
    us.pull("eu")
    assert {lane: sorted(values) for lane, values in held(us).items()} == {
        "eu": sorted(crossing(given)),
        "eu!us": [b"named"],
    }
    assert b"named too" in held(eu)["eu!"]


def test_a_filter_counts_at_once_whatever_a_program_has_read_before(make: Make) -> None:
    """Routes are cached; a link is made, and taken back, in another program."""
    eu, us = make("eu"), make("us")
    eu.log.create_stream("orders", ORDERS, 2)
    program = open_log(eu.url)
    try:
        program.append("orders", mixed(9))
        joined(eu, us, backfill="none")
        given = mixed(30)
        program.append("orders", given)
        leaving.unlink(eu.log, "orders")
        program.append("orders", mixed(7))
        joined(eu, us, backfill="none")
        program.append("orders", [Event(subject="orders.world.1", value=b"last")])
    finally:
        program.catalog.close()
    us.pull("eu")
    assert sorted(held(us)["eu"]) == sorted([*crossing(given), b"last"])
    assert set(held(us)) == {"eu"}
    assert sum(map(len, held(eu).values())) == 47


def test_history_stays_where_it_is(make: Make) -> None:
    eu, us = make("eu"), make("us")
    for place in (eu, us):
        place.log.create_stream("orders", ORDERS, 2)
        place.log.append("orders", mixed(10))
    for backfill in ("all", "2020-01-01"):
        with pytest.raises(LinkError, match="--backfill none"):
            joined(eu, us, backfill=backfill)
    assert eu.log.catalog.read(links) == us.log.catalog.read(links) == {}
    joined(eu, us, backfill="none")
    eu.log.append("orders", given := mixed(20))
    assert us.pull("eu") > 0
    eu.pull("us")
    assert {lane: len(values) for lane, values in held(us).items()} == {
        "us!": 10,
        "eu": len(crossing(given)),
    }
    assert set(held(eu)) == {"eu", "eu!"}


def test_segments_that_follow_and_regions_that_take_over_keep_the_filter(make: Make) -> None:
    eu, us = make("eu"), make("us")
    eu.log.create_stream("orders", ORDERS, 1)
    joined(eu, us, writers="eu")
    eu.log.split("orders", 0)
    eu.log.append("orders", given := mixed(30))
    us.pull("eu")
    assert graph(us) == graph(eu)
    assert sorted(held(us)["eu"]) == sorted(crossing(given))
    promoting.promote(us.log, "orders", us.neighbours, force=True)
    renew_region(us.log, us.neighbours)
    us.log.append("orders", given)
    assert {lane: sorted(values) for lane, values in held(us).items() if "us" in lane} == {
        "us~2": sorted(crossing(given)),
        "us~2!": sorted({e.value for e in given} - set(crossing(given))),
    }


def test_a_filter_that_is_none_or_another_is_refused(make: Make) -> None:
    eu, us = make("eu"), make("us")
    eu.log.create_stream("orders", ORDERS, 1)

    def attempt(filter: str | None) -> None:
        link(eu.log, "orders", "us", here=eu.url, catalog=us.url, filter=filter)

    for bad in ("orders..x", "", "orders.>.x"):
        with pytest.raises(InvalidFilterError):
            attempt(bad)
    with pytest.raises(LinkError, match=r"lets nothing pass.*captures orders\.>"):
        attempt("bills.>")
    assert eu.log.catalog.read(links) == us.log.catalog.read(links) == {}
    assert not us.log.streams()
    attempt(WORLD)
    attempt(WORLD)
    for other in (None, "orders.>"):
        with pytest.raises(LinkError, match=r"linked with the filter 'orders\.world"):
            attempt(other)
    (seen,) = status(us.log, us.neighbours).links
    assert seen.filter == WORLD


def test_doctor_tells_when_two_regions_have_different_filters(make: Make) -> None:
    eu, us = make("eu"), make("us")
    for place in (eu, us):
        place.log.create_stream("orders", ORDERS, 1)
    near = {"here": eu.url, "catalog": us.url, "one_sided": True}
    link(eu.log, "orders", "us", filter=WORLD, **near)  # type: ignore[arg-type]
    with pytest.raises(LinkError, match="is linked with the filter"):
        link(us.log, "orders", "eu", here=us.url, catalog=eu.url, one_sided=True)
    leaving.unlink(eu.log, "orders")
    link(us.log, "orders", "eu", here=us.url, catalog=eu.url, one_sided=True)
    with pytest.raises(LinkError, match="is linked with no filter"):
        link(eu.log, "orders", "us", filter=WORLD, **near)  # type: ignore[arg-type]
    link(eu.log, "orders", "us", **near)  # type: ignore[arg-type]
    assert not [each for each in examine(eu.log, eu.neighbours) if "crosses" in each.found]


def stage(place: Place, given: list[Event]) -> Part:
    stager = Stager(place.log, place.log.routes.refresh("orders"), rows_bytes=2000)
    stager.add(to_batch(given))
    return stager.finish()


def test_what_spark_tasks_staged_is_judged_also_before_there_was_a_filter(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "FILE_BYTES", 4000)
    eu, us = make("eu"), make("us")
    eu.log.create_stream("orders", ORDERS, 2)
    given = mixed(300, 50)
    early = stage(eu, given)
    assert early.files
    joined(eu, us)
    assert StagedWrite(eu.log, [early], "p", 0).commit().count == 300
    late = stage(eu, given)
    assert StagedWrite(eu.log, [late], "p", 1).commit().count == 300
    us.pull("eu")
    assert sorted(held(us)["eu"]) == sorted(2 * crossing(given))
    assert len(held(eu)["eu!"]) == 600 - len(held(us)["eu"])
    leaving.unlink(eu.log, "orders")
    assert StagedWrite(eu.log, [stage(eu, given)], "p", 2).commit().count == 300


def test_events_apart_are_those_of_the_batch_in_order() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        rows = rng.randrange(1, 14)
        kinds = [rng.choice("scm") for _ in range(rows)]  # stays, crosses, marker
        ranges = [(at, at + 1) for at, kind in enumerate(kinds) if kind == "s"]
        if rng.random() < 0.5:  # rows that are markers may count as staying as well
            ranges = [(at, at + 1) for at, kind in enumerate(kinds) if kind != "c"]
        merged: list[tuple[int, int]] = []
        for lo, hi in ranges:
            if merged and merged[-1][1] == lo:
                merged[-1] = (merged[-1][0], hi)
            else:
                merged.append((lo, hi))
        markers = [at for at, kind in enumerate(kinds) if kind == "m"]
        pieces = list(lanes._between(5, rows, markers))
        found = list(lane_filters.apart(pieces, merged, 5))
        assert [(at, stays) for lo, hi, stays in found for at in range(lo, hi)] == [
            (5 + at, kind == "s") for at, kind in enumerate(kinds) if kind != "m"
        ]
        for (_, end, one), (first, _, other) in pairwise(found):
            assert first > end or one != other


def test_a_filter_holds_on_either_database(catalog_url: str, make: Make, tmp_path: Path) -> None:
    url = catalog_url.replace("postgres:@", "postgres@")
    eu = Place("eu", url, tmp_path / "store")
    us = make("us")
    try:
        eu.log.create_stream("orders", StreamConfig(subjects=("orders.>",)), 2)
        program = open_log(url, tmp_path / "store")
        program.append("orders", mixed(5))
        link(
            us.log, "orders", "eu", here=us.url, catalog=url, store=tmp_path / "store",
            filter=WORLD, backfill="none",
        )  # fmt: skip
        given = mixed(60)
        program.append("orders", given)
        for event in given:
            program.publish(event)
        write = program.write_of()
        write.add("orders", to_batch(given), step=step_for(program, "orders", ["us"]))
        program.commit(write)
        us.pull("eu")
        both = sorted(crossing(given))
        assert {lane: sorted(values) for lane, values in held(us).items()} == {
            "eu": sorted(both * 2),
            "eu!us": both,
        }
        own = eu.log.catalog.read(lambda tx: streams.require(tx, "orders").segments[0].lane)
        assert lane_filters.filter_of(own) == WORLD
        program.catalog.close()
    finally:
        eu.close()


def test_a_file_of_which_every_other_event_crosses_is_opened_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    eu, us = make("eu"), make("us")
    eu.log.create_stream("orders", ORDERS, 1)
    joined(eu, us)
    names = ("world", "local")
    given = [
        Event(subject=f"orders.{names[at % 2]}.1", value=b"%d" % at + b"." * 3000)
        for at in range(800)
    ]
    eu.log.append("orders", given)
    opened: list[str] = []
    real = files.open_file

    def watched(store: Store, path: str, *args: int) -> Any:
        opened.append(path)
        return real(store, path, *args)

    monkeypatch.setattr(files, "open_file", watched)
    us.pull("eu")
    assert held(us) == {"eu": crossing(given)}
    assert len(opened) <= 2  # and once to read what was copied


def test_a_damaged_batch_of_events_that_stay_does_not_hold_up_the_others(make: Make) -> None:
    eu, us = make("eu"), make("us")
    eu.log.create_stream("orders", ORDERS, 1)
    joined(eu, us)
    for name in ("world", "local", "world", "world", "local", "world"):
        eu.log.append("orders", [Event(subject=f"orders.{name}.1", value=name.encode())])

    def damage(tx: Tx) -> None:
        tx.execute("UPDATE batches SET checksum = checksum + 1 WHERE start_offset IN (1, 4)")

    eu.log.catalog.write(damage)
    us.pull("eu")
    assert held(us) == {"eu": [b"world"] * 4}
