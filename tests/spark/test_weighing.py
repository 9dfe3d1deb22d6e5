"""How many events fit into a limit of bytes, sought from where a query stands."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.catalog import Tx, batches
from headrace.log.open import open_log
from headrace.spark import weighing
from headrace.spark.weighing import Ahead
from tests.log.helpers import create, table


@pytest.mark.parametrize("stride_events", [1, 7, 64])
def test_strides_find_what_a_search_of_the_whole_segment_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride_events: int
) -> None:
    monkeypatch.setattr(weighing, "STRIDE_EVENTS", stride_events)
    chance = random.Random(stride_events)
    log = open_log(tmp_path / "catalog")
    create(log)
    for _ in range(40):
        log.append("s", table(chance.randint(1, 30), value_bytes=chance.randint(1, 300)))
    (segment,) = log.stream("s").segments

    def compare(tx: Tx) -> None:
        for _ in range(300):
            position = chance.randrange(segment.head)
            begin = batches.bytes_before(tx, segment, position)
            upto = chance.randint(begin, segment.bytes)
            ahead = Ahead(segment, position, segment.head - position)
            found = position + weighing.events_within(tx, ahead, upto)
            assert found == batches.offset_at_bytes(tx, segment, upto)

    log.catalog.read(compare, snapshot=True)
    log.catalog.close()


def test_no_more_is_taken_than_was_asked_for_and_never_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "catalog")
    create(log)
    log.append("s", table(1000, value_bytes=100))
    (segment,) = log.stream("s").segments
    ahead = {"a": Ahead(segment, 10, 5), "b": Ahead(segment, 500, 500)}

    def taken(most: int) -> dict[str, int]:
        return log.catalog.read(lambda tx: weighing.within_bytes(tx, ahead, most))

    assert taken(10**9) == {"a": 5, "b": 500}
    assert taken(2) == {"a": 1, "b": 1}
    some = taken(30_000)
    assert some["a"] <= 5
    assert 0 < some["b"] < 500
    log.catalog.close()
