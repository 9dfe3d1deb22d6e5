"""The list of decisions of a group in the catalog: numbers, bounds, and what reading it costs."""

from __future__ import annotations

from contextlib import closing

import pytest

from headrace.catalog import Catalog, Tx, decisions, entries, open_catalog, schema
from headrace.errors import InvalidInputError
from tests.catalog.test_opening import raw

DAY_US = 24 * 3600 * 1_000_000


def add(catalog: Catalog, group: str, *at_us: int) -> int:
    return catalog.write(
        lambda tx: decisions.append(tx, group, [(each, b"x") for each in at_us]),
        locks=[decisions.lock(group)],
        sync=False,
    )


def numbers(catalog: Catalog, group: str = "g", limit: int = 1_000_000) -> list[int]:
    return [number for number, _, _ in catalog.read(lambda tx: decisions.last(tx, group, limit))]


def test_numbers_count_up_within_a_group(catalog: Catalog) -> None:
    assert add(catalog, "g", 1, 2) == 1
    assert add(catalog, "h", 1) == 1
    assert add(catalog, "g", 3) == 3
    assert numbers(catalog) == [1, 2, 3]
    assert numbers(catalog, limit=2) == [2, 3]
    assert catalog.read(lambda tx: decisions.last(tx, "g", 1, before=3)) == [(2, 2, b"x")]
    assert catalog.read(lambda tx: decisions.after(tx, "g", 1, 10)) == [(2, 2, b"x"), (3, 3, b"x")]
    assert catalog.read(lambda tx: decisions.count(tx, "g")) == 3
    assert catalog.read(lambda tx: decisions.count(tx, "nobody")) == 0


def test_old_ones_make_room_beyond_the_last_two_thousand(catalog: Catalog) -> None:
    for _ in range(10):
        add(catalog, "g", *([1] * 300))
    kept = numbers(catalog)
    assert kept == list(range(kept[0], 3001))
    assert decisions.KEPT <= len(kept) <= decisions.KEPT + decisions.PRUNE_EVERY


def test_young_ones_are_kept_beyond_two_thousand_up_to_a_bound(catalog: Catalog) -> None:
    now_us = catalog.read(lambda tx: tx.now_us())
    add(catalog, "g", *([now_us - 8 * DAY_US] * 100), *([now_us - 6 * DAY_US] * 4_900))
    assert numbers(catalog) == list(range(101, 5001))
    add(catalog, "g", *([now_us] * 20_000))
    kept = numbers(catalog)
    assert decisions.KEPT_MAX <= len(kept) <= decisions.KEPT_MAX + decisions.PRUNE_EVERY
    assert kept[-1] == 25_000


def test_the_numbers_of_a_forgotten_group_do_not_begin_anew(catalog: Catalog) -> None:
    add(catalog, "g", 1, 2)
    add(catalog, "h", 1)
    catalog.write(lambda tx: decisions.forget(tx, "g"), locks=[decisions.lock("g")])
    assert numbers(catalog) == []
    assert numbers(catalog, "h") == [1]
    assert add(catalog, "g", 5) == 3


def test_the_last_of_one_group_are_found_by_the_key_alone(catalog: Catalog) -> None:
    """With one group or a thousand: no scan of the table."""
    if catalog.shared:
        plan = catalog.read(
            lambda tx: tx.rows(
                "EXPLAIN SELECT number FROM decisions WHERE group_key = 'g' "
                "ORDER BY number DESC LIMIT 100"
            )
        )
        assert "decisions_pkey" in str(plan)
    else:
        plan = catalog.read(
            lambda tx: tx.rows(
                "EXPLAIN QUERY PLAN SELECT number, at_us, record FROM decisions "
                "WHERE group_key = 'g' AND number < 9 ORDER BY number DESC LIMIT 100"
            )
        )
        assert [row[3] for row in plan] == [
            "SEARCH decisions USING INDEX sqlite_autoindex_decisions_1 (group_key=? AND number<?)"
        ]


def test_a_name_that_is_no_key_is_refused(catalog: Catalog) -> None:
    for bad in ("", "a\nb", "x" * 600):
        with pytest.raises(InvalidInputError):
            add(catalog, bad, 1)


def test_records_of_older_formats_are_dropped_and_nothing_else(catalog_url: str) -> None:
    def put(tx: Tx, bucket: str) -> None:
        entries.put(tx, bucket, "k", b"old")

    with raw(catalog_url) as (tx, types):
        schema.migrate(tx, types, "here", upto=4)
        for bucket in ("group-decisions", "decisions:orders.billing", "elastic-consumer-groups"):
            put(tx, bucket)
    with closing(open_catalog(catalog_url)) as catalog:
        assert catalog.entries.list("group-decisions") == ()
        assert catalog.entries.list("decisions:orders.billing") == ()
        assert len(catalog.entries.list("elastic-consumer-groups")) == 1
