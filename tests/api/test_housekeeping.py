"""Housekeeping: one of the programs on a catalog applies what the policies say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import testing
from headrace.api import housekeeping
from headrace.catalog import Tx, progress
from headrace.catalog.streams import ByEvents, Consumed, Limits, StreamConfig
from headrace.groups import chores
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join
from headrace.log import compact
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.open import open_log

KEEP_ONE = StreamConfig(subjects=("a.>",), retention=Limits(events=1))


def fill(log: Log) -> None:
    log.create_stream("a", KEEP_ONE)
    for number in range(3):
        log.append("a", Event(subject="a.b", value=str(number).encode()))


def test_a_round_trims_what_the_policy_lets_go(log: Log) -> None:
    fill(log)
    assert housekeeping.tidy(log, "one", 60_000)
    assert log.stream("a").segments[0].tail == 2


def test_while_one_keeps_house_another_does_not(log: Log) -> None:
    fill(log)
    assert housekeeping.tidy(log, "one", 60_000)
    log.append("a", Event(subject="a.b", value=b"more"))
    assert not housekeeping.tidy(log, "two", 60_000)
    assert log.stream("a").segments[0].tail == 2
    assert housekeeping.tidy(log, "one", 60_000)
    assert log.stream("a").segments[0].tail == 3


def test_an_open_log_keeps_house_by_itself(catalog_url: str) -> None:
    async def main() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("a", ["a.>"], retention=Limits(events=1))
            for number in range(3):
                await hr.publish("a.b", str(number).encode())
            await testing.driven_clock().advance(housekeeping.EVERY_S - 1)
            assert (await hr.stream("a")).segments[0].tail == 0
            await testing.driven_clock().advance(1)
            assert (await hr.stream("a")).segments[0].tail == 2

    testing.run(main())


def many(log: Log, count: int) -> None:
    log.create_stream("b", StreamConfig(subjects=("b.>",)))
    for number in range(count):
        log.append("b", Event(subject="b.b", value=str(number).encode()))


def batches_of(log: Log) -> int:
    row = log.catalog.read(lambda tx: tx.row("SELECT count(*) FROM batches"))
    return 0 if row is None else int(row[0])


def test_very_many_small_batches_are_compacted_where_no_pipeline_runs(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "BATCHES_MANY", 20)
    many(log, 20)
    compacting = housekeeping.Compacting(log)
    # They are younger than a minute, and too few.
    compacting.run()
    log.append("b", Event(subject="b.b", value=b"20"))
    compacting.run()
    assert batches_of(log) == 21
    older(log)
    compacting.run()
    assert batches_of(log) == 21, "it failed a moment ago, and little was added since"
    lease = log.catalog.leases.acquire("pipeline", "somebody", 60_000)
    housekeeping.Compacting(log).run()
    assert batches_of(log) == 21
    assert lease is not None
    log.catalog.leases.release(lease)
    housekeeping.Compacting(log).run()
    assert batches_of(log) == 1
    values = [value for batch in log.read("b") for value in batch.column("value").to_pylist()]
    assert values == [str(number).encode() for number in range(21)]


def test_compaction_ends_when_the_log_is_closed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "BATCHES_MANY", 20)
    monkeypatch.setattr(compact, "PIECES_MAX", 10)
    many(log, 40)
    older(log)
    compacting = housekeeping.Compacting(log)
    real = compact.rewrite

    def closing(*args: Any) -> Any:
        compacting.closing = True
        return real(*args)

    monkeypatch.setattr(compact, "rewrite", closing)
    compacting.run()
    assert batches_of(log) == 31


def older(log: Log) -> None:
    log.catalog.write(
        lambda tx: tx.execute("UPDATE batches SET created_us = created_us - 100000000")
    )


def test_scaling_policies_and_the_sweep_are_applied_and_written_down(log: Log) -> None:
    log.create_stream("c", StreamConfig(subjects=("c.>",), scaling=ByEvents(target_per_s=5)), 2)
    fill(log)
    log.catalog.write(lambda tx: _age(tx, 7200))
    assert housekeeping.tidy(log, "one", 60_000)
    done = log.catalog.read(chores.last_done)
    assert set(done) == set(chores.CHORES)
    assert {each.by for each in done.values()} == {"one"}
    assert done["retention"].note == "2 events removed"
    assert "c: " in done["scaling"].note  # both were cold, and are merged
    assert len(log.stream("c").open_segments) == 1
    swept = done["sweep"].at_us
    assert housekeeping.tidy(log, "one", 60_000)
    again = log.catalog.read(chores.last_done)
    assert again["sweep"].at_us == swept  # once an hour
    assert again["retention"].at_us > done["retention"].at_us


def test_segments_of_which_nothing_is_left_go_after_a_while(log: Log) -> None:
    fill(log)
    log.merge("a", log.split("a", 0).opened)
    log.trim("a", {0: 3})
    assert housekeeping.tidy(log, "one", 60_000)
    assert len(log.stream("a").segments) == 4
    aged = "UPDATE segments SET sealed_us = sealed_us - 3700000000"
    log.catalog.write(lambda tx: tx.execute(aged))
    assert housekeeping.tidy(log, "one", 60_000)
    assert [segment.number for segment in log.stream("a").segments] == [3]
    note = log.catalog.read(chores.last_done)["retention"].note
    assert note.endswith("and 3 segments of which nothing was left")


def test_what_is_to_stay_is_not_cut_again_and_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_stream("c", StreamConfig(subjects=("c.>",), retention=Consumed()))
    log.append("c", [Event(subject="c.b", value=b"") for _ in range(3)])
    stream = log.stream("c")
    segment = stream.segments[0].id
    trimmed: list[str] = []
    trim = Log.trim

    def counted(log: Log, name: str) -> dict[int, int]:
        trimmed.append(name)
        return trim(log, name)

    monkeypatch.setattr(Log, "trim", counted)

    def acked(floor: int) -> None:
        log.catalog.write(lambda tx: join(tx, "g", {segment: Progress(floor)}))

    log.catalog.write(lambda tx: progress.subscribe(tx, stream.id, "g"))
    tried: housekeeping.Tried = {}
    assert housekeeping.tidy(log, "one", 60_000, tried)
    assert trimmed == []
    acked(2)  # within the batch: all of it stays
    for _ in range(2):
        assert housekeeping.tidy(log, "one", 60_000, tried)
        assert log.stream("c").segments[0].tail == 0
    assert trimmed == ["c"]
    acked(3)
    assert housekeeping.tidy(log, "one", 60_000, tried)
    assert log.stream("c").segments[0].tail == 3
    assert housekeeping.tidy(log, "one", 60_000, tried)
    assert (trimmed, tried) == (["c", "c"], {})


def test_a_round_in_which_nothing_goes_is_no_news_to_who_looks_now_and_then(tmp_path: Path) -> None:
    log = open_log(tmp_path / "catalog")
    fill(log)
    assert housekeeping.tidy(log, "one", 60_000)
    every, most = log.catalog.mark(), log.catalog.mark(aside=False)
    assert housekeeping.tidy(log, "one", 60_000)
    assert log.catalog.mark(aside=False) == most
    assert log.catalog.mark() != every
    log.append("a", Event(subject="a.b", value=b"more"))
    assert log.catalog.mark(aside=False) != most
    most = log.catalog.mark(aside=False)
    assert housekeeping.tidy(log, "one", 60_000)  # something goes
    assert log.catalog.mark(aside=False) != most
    log.catalog.close()


def _age(tx: Tx, seconds: int) -> None:
    tx.execute("UPDATE segments SET created_us = created_us - ?", (seconds * 1_000_000,))
