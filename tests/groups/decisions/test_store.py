"""The record of decisions: what is kept of one, who is told, and what follows from what."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import headrace
from headrace.catalog import Catalog
from headrace.catalog import decisions as stored
from headrace.errors import InvalidInputError
from headrace.groups import decisions
from headrace.groups.decisions import Decision, UnitRange, What, following, ranges, units_text
from headrace.groups.decisions.core.record import REASON_CHARS_MAX

GROUP = "$share/audit/orders.>"


def record(
    catalog: Catalog, *given: Decision, group: str = GROUP, cause: int = 0
) -> list[Decision]:
    return catalog.write(
        lambda tx: decisions.record(tx, group, given, cause=cause),
        locks=decisions.locks(group),
        sync=False,
    )


def test_a_decision_comes_back_as_it_was_given_with_number_and_time(catalog: Catalog) -> None:
    given = Decision(
        what=What.MOVED,
        reason="m3 was added",
        units=ranges([0, 1, 2, 9]),
        source="m1",
        target="m3",
        instance="host-1",
        token=7,
        took_ms=12,
    )
    [told] = record(catalog, given)
    assert told.number == 1
    assert told.group == GROUP
    assert told.at_us > 0
    [found] = catalog.read(lambda tx: decisions.read(tx, GROUP))
    assert found == told
    assert found.units == (UnitRange(0, 2), UnitRange(9, 9))
    assert found.unit_count == 4
    assert found.member == "m3"
    assert found.concerns(1)
    assert not found.concerns(3)
    assert not found.concerns(1, "orders")
    assert record(catalog) == []


def test_one_follows_from_another(catalog: Catalog) -> None:
    [first] = record(catalog, Decision(what=What.CONFIGURED, reason="m3 was added"))
    later = record(
        catalog,
        Decision(what=What.MOVES, reason="x", source="m1", target="m3"),
        Decision(what=What.MOVES, reason="x", source="m2", target="m3", cause=99),
        cause=first.number,
    )
    assert [each.cause for each in later] == [first.number, 99]

    def latest(what: What, target: str = "m3") -> Decision | None:
        return catalog.read(
            lambda tx: decisions.latest(tx, GROUP, [what], that=lambda d: d.member == target)
        )

    assert latest(What.MOVES) == later[1]
    assert latest(What.MOVES, "m4") is None
    assert latest(What.LOST) is None


def test_the_last_are_read_in_pages(catalog: Catalog) -> None:
    record(catalog, *(Decision(what=What.WAITS, reason=str(n)) for n in range(1, 6)))

    def page(limit: int, before: int | None = None) -> list[int]:
        return [d.number for d in catalog.read(lambda tx: decisions.read(tx, GROUP, limit, before))]

    assert page(2) == [4, 5]
    assert page(2, before=4) == [2, 3]
    assert page(0) == []
    assert page(9) == [1, 2, 3, 4, 5]
    for bad in (-1, 10_001, True, "3", 2.0):
        with pytest.raises(InvalidInputError, match="limit"):
            page(bad)  # type: ignore[arg-type]


def test_what_is_too_long_is_cut(catalog: Catalog) -> None:
    record(catalog, Decision(what=What.WAITS, reason="r" * 9999, units=ranges(range(0, 9000, 2))))
    [found] = catalog.read(lambda tx: decisions.read(tx, GROUP))
    assert len(found.reason) == REASON_CHARS_MAX
    assert len(found.units) == 1024


def test_what_cannot_be_stored_changes_nothing(catalog: Catalog) -> None:
    bad = Decision(what="flew away", reason="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="flew away"):
        record(catalog, Decision(what=What.LEFT, reason="x"), bad)
    assert catalog.read(lambda tx: decisions.read(tx, GROUP)) == []


def test_a_record_that_cannot_be_read_is_left_out(catalog: Catalog) -> None:
    record(catalog, Decision(what=What.LEFT, reason="x"))
    catalog.write(lambda tx: stored.append(tx, GROUP, [(1, b"\xc1"), (2, b"")]))
    record(catalog, Decision(what=What.LOST, reason="x"))
    found = catalog.read(lambda tx: decisions.read(tx, GROUP))
    assert [(d.number, d.what) for d in found] == [(1, What.LEFT), (4, What.LOST)]


def test_a_thread_that_watches_is_woken(catalog: Catalog) -> None:
    record(catalog, Decision(what=What.LEFT, reason="before"))
    seen: list[Decision] = []
    looking = threading.Event()

    def look() -> None:
        for each in following.watch(catalog, GROUP, after_number=0, timeout_s=30):
            seen.append(each)
            looking.set()
            if each.what is What.LOST:
                return

    thread = threading.Thread(target=look)
    thread.start()
    assert looking.wait(30)
    record(catalog, Decision(what=What.LOST, reason="after"))
    thread.join(30)
    assert [d.reason for d in seen] == ["before", "after"]
    assert list(following.watch(catalog, GROUP, timeout_s=0.01)) == []


def test_a_follower_is_woken_and_misses_nothing_of_a_group_that_is_made_anew(
    tmp_path: Path,
) -> None:
    async def run() -> list[int]:
        async with headrace.open(tmp_path, housekeeping=False) as hr:
            catalog = hr.host.log.catalog
            record(catalog, Decision(what=What.LEFT, reason="before"))
            found = following.follow(hr.host, GROUP, after_number=0)
            seen = [(await anext(found)).number]
            waiting = asyncio.ensure_future(anext(found))
            await asyncio.sleep(0)

            def anew() -> None:
                catalog.write(lambda tx: decisions.forget(tx, GROUP), locks=decisions.locks(GROUP))
                record(catalog, Decision(what=What.LOST, reason="after"))

            await asyncio.to_thread(anew)
            seen.append((await asyncio.wait_for(waiting, 30)).number)
            await found.aclose()
            return seen

    assert asyncio.run(run()) == [1, 2]


def test_units_in_words() -> None:
    assert units_text(ranges([4])) == "partition 4"
    assert units_text(()) == ""
    assert units_text(ranges(["a.b/2", "a.b/3", "c/0"])) == "a.b/2-3, c/0"
    for bad in ("x", "", "a/", "1.5", "-1"):
        with pytest.raises(ValueError, match="not a unit"):
            ranges([bad])
