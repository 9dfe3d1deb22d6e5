"""Short forms for tests of the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace.catalog import Tx
from headrace.catalog.streams import StreamConfig
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.query import Query


def create(log: Log, name: str = "s", segments: int = 1, **config: Any) -> None:
    log.create_stream(name, StreamConfig(subjects=(f"{name}.>",), **config), segments)


def event(value: object = "", key: str | None = None, stream: str = "s", **more: Any) -> Event:
    return Event(subject=f"{stream}.x", value=str(value).encode(), key=key, **more)


def table(count: int, keys: int = 7, value_bytes: int = 8, stream: str = "s") -> pa.Table:
    """Events numbered from 0 in their values, over a number of keys."""
    return pa.table(
        {
            "subject": [f"{stream}.t"] * count,
            "key": [f"k{number % keys}" for number in range(count)],
            "value": [str(number).encode().ljust(value_bytes, b".") for number in range(count)],
        }
    )


def read(log: Log, name: str = "s", **query: Any) -> list[dict[str, Any]]:
    return [row for batch in log.read(name, Query(**query)) for row in batch.to_pylist()]


def values(log: Log, name: str = "s", **query: Any) -> list[str]:
    return [row["value"].decode().rstrip(".") for row in read(log, name, **query)]


def numbers(log: Log, name: str = "s", **query: Any) -> list[int]:
    return [int(value) for value in values(log, name, **query)]


def per_key(rows: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["key"], []).append(row["value"].decode().rstrip("."))
    return found


def check_dense(rows: Iterable[dict[str, Any]], starts: dict[int, int] | None = None) -> None:
    """Offsets of every segment go up by one, in the order in which they were read."""
    at = dict(starts or {})
    for row in rows:
        expected = at.get(row["segment"], 0)
        assert row["offset"] == expected, (row["segment"], row["offset"], expected)
        at[row["segment"]] = expected + 1


def heads(log: Log, name: str = "s") -> dict[int, int]:
    return {segment.number: segment.head for segment in log.stream(name).segments}


TABLES = (
    "streams",
    "segments",
    "segment_edges",
    "batches",
    "markers",
    "producers",
    "graveyard",
    "subscriptions",
    "progress",
)


def everything(log: Log) -> dict[str, list[Any]]:
    """All that the catalog and the store hold, to show that nothing changed."""

    def look(tx: Tx) -> dict[str, list[Any]]:
        return {name: sorted(map(repr, tx.rows(f"SELECT * FROM {name}"))) for name in TABLES}

    found = log.catalog.read(look, snapshot=True)
    if log.store is not None:
        found["files"] = sorted(file.path for file in log.store.list(""))
    return found


def files(log: Log) -> list[str]:
    assert log.store is not None
    return sorted(file.path for file in log.store.list(""))
