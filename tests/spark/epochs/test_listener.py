"""The listener advances a query's publisher by watermark or source, and nobody else's. No JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.catalog import epochs, leases
from headrace.catalog.streams import Epochs, StreamConfig
from headrace.epochs.runtime.status import status
from headrace.errors import HeadraceError
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark.epochs.listener import EpochListener
from headrace.spark.epochs.offsets import EpochOffset, EpochsAt


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(tmp_path / "data")
    for name, length in (("hours", 0), ("pairs", 2)):
        config = StreamConfig(subjects=(f"{name}.>",), epochs=Epochs(length=length))
        log.create_stream(name, config, segments=1)
    yield log
    log.catalog.close()


def progress(query: str, watermark: str | None = None, *frontiers: str) -> Any:
    """An event as Spark gives it to a listener."""
    sources = [
        SimpleNamespace(
            endOffset=json.dumps(
                EpochOffset(catalog="c", epochs=EpochsAt(text, 0, {"days": 1})).to_json()
            )
        )
        for text in frontiers
    ]
    found = SimpleNamespace(
        id=query,
        name=f"name of {query}",
        eventTime={} if watermark is None else {"watermark": watermark},
        sources=[*sources, SimpleNamespace(endOffset=None)],
    )
    return SimpleNamespace(progress=found)


def test_a_watermark_less_the_window_is_the_frontier(log: Log, tmp_path: Path) -> None:
    listener = EpochListener(
        "hours",
        catalog=tmp_path / "data",
        unit="hour",
        window=timedelta(minutes=30),
        query="name of q",
    )
    listener.onQueryProgress(progress("q"))
    listener.onQueryProgress(progress("q", "1970-01-01T00:00:00.000Z"))
    assert status(log, "hours").publishers == ()
    listener.onQueryProgress(progress("other", "1970-01-01T09:00:00.000Z"))
    for watermark, frontier in (("03:29", 2), ("03:30", 3), ("02:00", 3), ("05:10", 4)):
        listener.onQueryProgress(progress("q", f"1970-01-01T{watermark}:00.000Z"))
        assert status(log, "hours").frontier == (frontier,)
    assert status(log, "hours").publishers[0].owner == "spark-q"
    assert listener.failed is None


def test_the_earliest_source_counts_and_a_closed_one_closes(log: Log, tmp_path: Path) -> None:
    given: dict[str, Any] = {"catalog": tmp_path / "data", "by": "source"}
    listener = EpochListener("hours", query="q", **given)
    listener.onQueryProgress(progress("q", None, "9", "4"))
    assert status(log, "hours").frontier == (4,)
    # Another query, or one without a name to go by, moves nothing that is not its own.
    EpochListener("hours", **given).onQueryProgress(progress("thief", None, "7"))
    assert status(log, "hours").frontier == (4,)
    EpochListener("hours", **given).onQueryProgress(progress("q", None, "6"))
    assert status(log, "hours").frontier == (6,)
    listener.onQueryProgress(progress("q", None, "", ""))
    assert status(log, "hours").status == "closed"
    lease = epochs.lease_name(log.stream("hours").id, "spark")
    assert log.catalog.read(lambda tx: leases.get(tx, lease)) is None
    listener.onQueryProgress(progress("q", None, "8"))
    listener.onQueryProgress(progress("q", None, "", ""))
    assert status(log, "hours").status == "closed"
    assert listener.failed is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"by": "clock"}, "'watermark' or 'source'"),
        ({"unit": None}, "say how long an epoch is"),
        ({"unit": "week"}, "one of microsecond"),
        ({"window": timedelta(minutes=-1)}, "0 or more"),
        ({"stream": "pairs"}, "a watermark is an integer"),
        ({"publisher": "a/b"}, "publisher"),
        ({"stream": "nobody"}, "no stream"),
    ],
)
def test_what_makes_no_sense_is_refused(
    log: Log, tmp_path: Path, wrong: dict[str, Any], words: str
) -> None:
    given: dict[str, Any] = {"stream": "hours", "catalog": tmp_path / "data", "unit": "hour"}
    with pytest.raises(HeadraceError, match=words):
        EpochListener(**given | wrong)
