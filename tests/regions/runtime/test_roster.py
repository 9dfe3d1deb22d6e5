"""What an agent keeps of its region's groups: never out of date, cheap where nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog import Tx, entries, replicas
from headrace.catalog.streams import StreamConfig
from headrace.groups.homes import GROUPS_BUCKET, SNAPSHOT
from headrace.groups.partitioned.lifecycle import create_static
from headrace.groups.progress import Progress, store
from headrace.regions import enabling
from headrace.regions.records import get_group, put_group
from headrace.regions.runtime.roster import Roster, changed_records
from tests.regions.runtime.world import Stepped, linked, settle

ONE = StreamConfig(subjects=("orders.>",), partitions=1)


@pytest.fixture
def sides(tmp_path: Path, catalog_url: str) -> Iterator[tuple[Stepped, Stepped]]:
    """The first on either catalog, the second on SQLite."""
    store_of = tmp_path / "store" if "://" in catalog_url else None
    eu = Stepped("eu", catalog_url.replace("postgres:@", "postgres@"), store_of)
    us = Stepped("us", str(tmp_path / "us"))
    linked([eu, us], config=ONE, segments=1)
    yield eu, us
    eu.close()
    us.close()


def replicate(side: Stepped, *names: str, mode: str = "origin") -> None:
    for name in names:
        create_static(side.log, "orders", name, max_members=1, members=["m1"])
        enabling.enable(side.log, f"orders.{name}", side.neighbours, mode=mode)


def test_it_follows_groups_as_they_come_change_and_go(sides: tuple[Stepped, Stepped]) -> None:
    eu, _ = sides
    roster = Roster(eu.log.catalog)
    assert roster.read().records == {}
    replicate(eu, "billing")
    replicate(eu, "audit", mode=SNAPSHOT)
    roll = roster.read()
    assert roll.readers.keys() == {"orders.audit", "orders.billing"}
    assert roll.by_origin == ["orders.billing"]
    assert roll.under_snapshots("orders").keys() == {"orders.audit"}
    assert roll.under_snapshots("bills") == {}
    assert roll.streams_under_snapshots() == {"orders"}
    assert roster.read() is roll
    enabling.disable(eu.log, "orders.audit")
    assert roster.read().streams_under_snapshots() == set()


def test_what_a_transaction_that_fails_saw_is_not_kept(sides: tuple[Stepped, Stepped]) -> None:
    eu, _ = sides
    replicate(eu, "billing")
    roster = Roster(eu.log.catalog)
    before = roster.read().records

    def fail(tx: Tx) -> None:
        found = get_group(tx, "orders.billing")
        assert found is not None
        put_group(tx, type(found)(**{**_fields(found), "home": "us"}))
        assert roster.within(tx).records["orders.billing"].home == "us"
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        eu.log.catalog.write(fail, locks=(entries.lock(GROUPS_BUCKET),))
    assert roster.read().records == before
    assert eu.log.catalog.read(lambda tx: roster.within(tx).records) == before
    # The next change has the revision that the one that failed would have had.
    enabling.disable(eu.log, "orders.billing")
    assert roster.read().records != before


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_a_step_takes_as_many_statements_whatever_the_number_of_groups(
    sides: tuple[Stepped, Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing happened, and where one group acked something."""
    eu, us = sides
    eu.publish(10)
    quiet, busy = [], []
    for number in range(12):
        replicate(eu, f"g{number}")
        settle(eu, us)
        settle(eu, us)
        if number in (3, 7, 11):
            quiet.append([_statements(each, monkeypatch) for each in (eu, us)])
            segment = eu.log.stream("orders").segments[0].id
            place = Progress(number - 2)

            def ack(tx: Tx, place: Progress = place, segment: int = segment) -> None:
                store.join(tx, "orders.g0", {segment: place})

            eu.log.catalog.write(ack)
            assert _untranslated(eu) == {"orders.g0"}
            busy.append([_statements(each, monkeypatch) for each in (eu, us)])
    assert len({tuple(each) for each in quiet}) == 1, quiet
    assert len({tuple(each) for each in busy}) == 1, busy
    assert _untranslated(eu) == set()


def _untranslated(side: Stepped) -> set[str]:
    names = Roster(side.log.catalog).read().by_origin
    return side.log.catalog.read(lambda tx: replicas.untranslated(tx, names))


def _statements(side: Stepped, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many statements a step of the region's agent takes here."""
    count = 0
    kind = type(side.log.catalog.read(lambda tx: tx))
    side.agent._keep_due_s = side.agent._forget_due_s = float("inf")
    with monkeypatch.context() as patch:
        for name in ("rows", "row", "execute"):
            call = getattr(kind, name)

            def counted(self: Tx, *given: Any, call: Any = call, **options: Any) -> Any:
                nonlocal count
                count += 1
                return call(self, *given, **options)

            patch.setattr(kind, name, counted)
        side.agent.step()
    return count


def test_only_records_that_differ_are_looked_at_one_by_one(sides: tuple[Stepped, Stepped]) -> None:
    eu, us = sides
    replicate(eu, "billing", "audit")
    theirs = Roster(eu.log.catalog).read().records
    assert changed_records({}, theirs) == theirs
    settle(eu, us)
    assert changed_records(Roster(us.log.catalog).read().records, theirs) == {}
    enabling.disable(eu.log, "orders.audit")
    theirs = Roster(eu.log.catalog).read().records
    later = {k: r for k, r in theirs.items() if k == "orders.audit"}
    assert changed_records(Roster(us.log.catalog).read().records, theirs) == later
