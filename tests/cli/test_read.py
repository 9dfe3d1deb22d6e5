"""``headrace read`` and ``headrace store``."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace.sync
from headrace.cli.read import printable
from tests.api.test_reading import damage
from tests.cli.conftest import Cli


@pytest.fixture(scope="session")
def ten_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten events an hour apart in one segment, each in a batch of its own."""
    folder = tmp_path_factory.mktemp("ten") / "headrace-data"
    with headrace.sync.open(folder) as hr:
        hr.create_stream("orders", subjects=["orders.>"])
        for i in range(10):
            hr.publish(
                f"orders.{'odd' if i % 2 else 'even'}",
                str(i).encode(),
                key="k",
                timestamp=datetime(2013, 7, 4, i, tzinfo=UTC),
            )
    return folder


@pytest.fixture
def ten(cli: Cli, ten_template: Path) -> Cli:
    """A catalog with those ten events."""
    shutil.copytree(ten_template, "headrace-data")
    return cli


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ([], "0123456789"),
        (["--from", "latest"], ""),
        (["--from", "7"], "789"),
        (["--from", "0:7"], "789"),
        (["--until", "0:2"], "01"),
        (["--from", "2013-07-04T03:00Z", "--until", "2013-07-04T05:00:00"], "34"),
        (["--from", "2013-07-04T10:00+02:00", "--until", "latest"], "89"),
        (["--until", "2013-07-04"], ""),
        (["--from", "1h"], ""),
        (["--subject", "orders.odd"], "13579"),
        (["--subject", "orders.*", "--limit", "3"], "012"),
        (["--segments", "0"], "0123456789"),
        (["--follow", "--limit", "4"], "0123"),
    ],
)
def test_a_part_of_a_stream_is_read(ten: Cli, options: list[str], values: str) -> None:
    found = ten("read", "orders", "--json", *options)
    assert found.status == 0
    assert "".join(line["value"] for line in found.lines) == values


def test_people_get_a_table(ten: Cli) -> None:
    header, *lines = ten("read", "orders", "--limit", "2").out.splitlines()
    assert header.split() == ["time", "(UTC)", "subject", "key", "seg:offset", "value"]
    assert lines[1].split() == ["2013-07-04", "01:00:00", "orders.odd", "k", "0:1", "1"]
    assert header.index("value") == lines[0].rindex("0")


def test_a_value_cannot_play_tricks_on_the_terminal(cli: Cli) -> None:
    cli("stream", "create", "orders", "--subjects", "orders.>")
    nasty = "\x1b[31mred\x07\n\u202e" + "long" * 100
    cli("publish", "orders.n", nasty, "--key", "\x1b]0;title\x07")
    shown = cli("read", "orders").out
    assert len(shown.splitlines()) == 2
    assert all(character.isprintable() for line in shown.splitlines() for character in line)
    assert shown.rstrip().endswith("…")
    assert cli("read", "orders", "--json").lines[0]["value"] == nasty
    assert printable("a\tö日本") == "a\\tö日本"


def test_bytes_that_are_no_text_are_shown_all_the_same(cli: Cli) -> None:
    cli("stream", "create", "orders", "--subjects", "orders.>")
    cli("publish", "orders.n", stdin=b"\xff\x00abc")
    assert "\\xff\\x00abc" in cli("read", "orders").out
    assert cli("read", "orders", "--json").lines[0]["value_base64"] == "/wBhYmM="


@pytest.mark.parametrize(
    ("options", "status", "complaint"),
    [
        (["--from", "yesterday"], 2, "is not a place"),
        (["--from", "0:99"], 2, "outside segment 0"),
        (["--from", "0:1,0:2"], 2, "twice"),
        (["--from", "5:0"], 2, "no segment 5"),
        (["--segments", "x"], 2, "whole numbers"),
        (["--segments", "3"], 2, "no segment 3"),
        (["--limit", "0"], 2, "at least one"),
        (["--limit", "many"], 2, "limit"),
        (["--follow", "--until", "latest"], 2, "--until"),
        (["--subject", "a..b"], 2, "token"),
        (["--nonsense"], 2, "--nonsense"),
    ],
)
def test_a_read_of_nowhere_is_refused(
    ten: Cli, options: list[str], status: int, complaint: str
) -> None:
    refused = ten("read", "orders", *options)
    assert (refused.status, refused.out) == (status, "")
    assert complaint in refused.err
    assert refused.err.count("\n") == 1


def test_a_read_of_what_was_trimmed_says_where_the_stream_begins(ten: Cli) -> None:
    ten("stream", "trim", "orders", "--before", "0:4")
    refused = ten("read", "orders", "--from", "0:1", "--json")
    assert refused.status == 1
    told = json.loads(refused.err)
    assert told["error"] == "TrimmedError"
    assert "first retained offset is 4" in told["message"]


def test_a_damaged_batch_is_named_and_can_be_skipped(ten: Cli) -> None:
    damage(Path("headrace-data"), 2)
    refused = ten("read", "orders", "--json")
    assert refused.status == 1
    assert json.loads(refused.err)["error"] == "DamagedBatchError"
    going_on = ten("read", "orders", "--skip-damaged")
    assert going_on.status == 0
    assert "skipped segment 0 offsets 2 to 2" in going_on.err
    assert "skipped 1 event in 1 damaged batch\n" in going_on.err
    as_json = ten("read", "orders", "--skip-damaged", "--json")
    assert "".join(line["value"] for line in as_json.lines) == "013456789"
    assert json.loads(as_json.err)["skipped"]["start"] == 2


# --- store ---------------------------------------------------------------------------------


def test_a_sweep_removes_orphans_and_nothing_else(cli: Cli) -> None:
    cli("stream", "create", "orders", "--subjects", "orders.>")
    values = [f"{i:07}".encode() * 100 for i in range(4000)]
    pq.write_table(pa.table({"subject": ["orders.n"] * 4000, "value": values}), "e.parquet")
    assert cli("publish", "--file", "e.parquet").status == 0
    [file] = Path("headrace-data/store").rglob("*.parquet")
    orphan = file.with_name("0" * 32 + ".parquet")
    orphan.write_bytes(b"orphan")
    _make_old(orphan)
    _make_old(file)
    dry = cli("--json", "store", "sweep", "--dry-run").json
    assert (dry["files"], dry["orphans"], dry["orphan_bytes"]) == (2, 1, 6)
    assert orphan.exists()
    assert "removed 1 orphans" in cli("store", "sweep", "--older-than", "2h").out
    assert not orphan.exists()
    assert len(cli("read", "orders", "--json").lines) == 4000


def _make_old(path: Path) -> None:
    os.utime(path, (0, 0))


@pytest.mark.parametrize("age", ["5m", "long", "-1h"])
def test_a_sweep_that_could_hurt_an_append_is_refused(ten: Cli, age: str) -> None:
    refused = ten("store", "sweep", f"--older-than={age}")
    assert refused.status == 2
