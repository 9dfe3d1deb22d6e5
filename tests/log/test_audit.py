"""Damage that no checksum covers is found by comparing what the catalog says with what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.catalog import Tx, progress
from headrace.cli import run
from headrace.errors import UnreadableRecordError
from headrace.groups.progress import audit as progress_audit
from headrace.groups.progress.record import Progress
from headrace.log import audit, limits
from headrace.log.log import Log
from headrace.log.open import open_log
from tests.log.helpers import create, event, files, table

BLOB = "id = (SELECT min(id) + 1 FROM batches WHERE path IS NULL)"


def fill(log: Log) -> None:
    """Blobs and files, trimmed, split and compacted, with markers and the progress of a group."""
    create(log, segments=2)
    create(log, "t")
    for n in range(12):
        log.append("s", [event(n, key=str(n)), event(n, key=f"k{n}")], producer="p", sequence=n)
    log.append_marker("s", 1, b"m")
    log.trim("s", {0: 3})
    log.split("s", 0, 2)
    log.append("s", table(400, keys=50, value_bytes=40))
    log.append_marker("s", 1, b"m")

    def ack(tx: Tx) -> None:
        (only,) = [s for s in log.stream("s").segments if s.number == 1]
        progress.subscribe(tx, log.stream("s").id, "g")
        held = Progress(2, ((4, 5),))
        progress.put(tx, progress.Progress("g", only.id, held.floor, held.encode()))

    log.catalog.write(ack)


def flaws(log: Log) -> list[str]:
    found = list(audit.examine(log))
    return found + log.catalog.read(lambda tx: list(progress_audit.examine(tx)))


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 5000)


def test_a_log_in_order_has_no_flaw(log: Log) -> None:
    assert flaws(log) == []
    fill(log)
    assert files(log)
    assert flaws(log) == []
    log.compact("s")
    log.trim("s", {number: segment.head for number, segment in enumerate(log.stream("s").segments)})
    assert flaws(log) == []


@pytest.mark.parametrize(
    "damage",
    [
        *(
            f"segments SET {column} = {column} {change} WHERE number = 1"
            for column in ("head", "tail", "bytes", "trimmed_bytes", "max_ts_us", "markers")
            for change in ("+ 1", "- 1")
            if (column, change) != ("trimmed_bytes", "- 1")
        ),
        "segments SET range_lo = range_lo + 1 WHERE number = 1",
        "segments SET sealed_us = NULL WHERE number = 0",
        "segments SET stream_id = 99 WHERE number = 1",
        "segment_edges SET successor = 77 WHERE successor = 2",
        f"batches SET start_offset = 900000 WHERE {BLOB}",
        f"batches SET end_offset = end_offset + 1 WHERE {BLOB}",
        f"batches SET total_bytes = total_bytes - 5000 WHERE {BLOB}",
        f"batches SET segment_id = 99 WHERE {BLOB}",
        "batches SET checksum = checksum + 1 WHERE path IS NOT NULL",
        f"batches SET data = NULL WHERE {BLOB}",
        "markers SET total = total + 1 WHERE total = 2",
        "markers SET at_offset = 100000 WHERE total = 2",
        "progress SET segment_id = 99",
        "progress SET floor = 3",
        "progress SET state = state || state",
        "producers SET positions = '7' WHERE sequence = 3",
        "streams SET config = '{' WHERE name = 't'",
    ],
)
def test_what_does_not_agree_is_found(log: Log, damage: str) -> None:
    fill(log)
    if not log.catalog.shared:
        damage = damage.replace("'7'", "x'07'").replace("'{'", "x'7b'")
        damage = damage.replace("state || state", "CAST(state || state AS BLOB)")
    log.catalog.write(lambda tx: tx.execute(f"UPDATE {damage}"))
    assert flaws(log)


def test_a_file_or_a_row_that_is_lost_is_found(log: Log, tmp_path: Path) -> None:
    fill(log)
    assert log.store is not None
    log.store.delete(files(log)[0])
    (found,) = flaws(log)
    assert "missing" in found
    log.catalog.write(lambda tx: tx.execute(f"DELETE FROM batches WHERE {BLOB}"))
    assert len(flaws(log)) > 1


def test_one_stream_that_cannot_be_read_leaves_the_others(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    fill(log)
    log.catalog.write(
        lambda tx: tx.execute("UPDATE streams SET config = ? WHERE name = 't'", (b"{",))
    )
    assert [stream.name for stream in log.streams()] == ["s"]
    assert "'t'" in caplog.text
    with pytest.raises(UnreadableRecordError, match="'t'"):
        log.stream("t")
    again = Log(log.catalog, log.store)
    assert again.publish(event(1)).stream == "s"


def test_doctor_tells_what_a_deep_look_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "c")
    log = open_log(place)
    fill(log)
    assert run(["doctor", "--catalog", place, "--deep", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [c["state"] for c in told["checks"] if c["name"] == "contents"] == ["ok"]
    log.catalog.write(lambda tx: tx.execute("UPDATE segments SET tail = tail + 1 WHERE number = 1"))
    assert run(["doctor", "--catalog", place, "--json"]) == 0
    capsys.readouterr()
    assert run(["doctor", "--catalog", place, "--deep"]) == 1
    assert "segment 1" in capsys.readouterr().out
    log.catalog.close()
