"""Rows that only count or name something: damage to them stops nobody, or is an error."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import headrace.sync
from headrace.errors import CatalogError


@pytest.mark.parametrize("damage", ["number = 1", "number = 0", "group_key = 'x'"])
def test_a_damaged_count_of_decisions_keeps_nobody_from_joining(
    catalog_url: str, damage: str
) -> None:
    with headrace.sync.open(catalog_url) as hr:
        hr.create_stream("p", ["p.>"], partitions=1)
        hr.groups.create_static("p", "g", max_members=1, members=["m"])
        hr.publish("p.x", b"1")
        with hr.join("p", "g", "m") as member:
            assert next(iter(member)).value == b"1"
        sql = f"UPDATE decision_counts SET {damage} WHERE group_key LIKE 'p%'"
        assert hr.client.log.catalog.write(lambda tx: tx.execute(sql, ()))
        with hr.join("p", "g", "m") as member:
            assert next(iter(member)).value == b"1"
        assert hr.groups.explain("p", "g").decisions


def test_a_segment_that_would_have_to_wait_for_itself_is_an_error(catalog_url: str) -> None:
    with headrace.sync.open(catalog_url) as hr:
        for name in ("p", "q"):
            hr.create_stream(name, [f"{name}.>"])
            hr.publish(f"{name}.x", b"1")
        hr.split("p", 0)
        sql = "UPDATE segment_edges SET successor = 0 WHERE successor = 1"
        hr.client.log.catalog.write(lambda tx: tx.execute(sql, ()))
    with headrace.sync.open(catalog_url) as hr:
        with pytest.raises(CatalogError, match=r"'p' cannot be read \(segment 0 cannot follow"):
            list(hr.read("p"))
        assert sum(batch.num_rows for batch in hr.read("q")) == 1
        hr.delete_stream("p")


def test_a_version_that_is_no_number_is_an_error_that_says_so(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("s", ["s.>"])
    with sqlite3.connect(tmp_path / "d" / "headrace.db") as connection:
        connection.execute("UPDATE meta SET value = '1!' WHERE key = 'schema_version'")
    connection.close()
    with pytest.raises(CatalogError, match=r"cannot be read.*'1!' is no number"):
        headrace.sync.open(tmp_path / "d").__enter__()
