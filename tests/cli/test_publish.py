"""``headrace publish``."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Cli


def published(cli: Cli, stream: str = "orders") -> list[dict[str, Any]]:
    """What is in the stream, without what differs from run to run."""
    lines = cli("read", stream, "--json").lines
    return [
        {name: line[name] for name in line if name not in ("segment", "offset", "timestamp")}
        for line in lines
    ]


def test_one_event_is_published_with_key_and_headers(orders: Cli) -> None:
    done = orders(
        "--json", "publish", "orders.eu.42", '{"total": 12}', "--key", "42",
        "--header", "source=till=7", "-H", "empty=",
    )  # fmt: skip
    assert done.json == {"stream": "orders", "segment": done.json["segment"], "offset": 0}
    assert published(orders) == [
        {
            "subject": "orders.eu.42",
            "key": "42",
            "value": '{"total": 12}',
            "headers": {"source": "till=7", "empty": ""},
        }
    ]
    assert orders("publish", "orders.eu.42", "x", "--key", "42").out.endswith(":1\n")


@pytest.mark.parametrize("dash", [[], ["-"]])
def test_a_value_may_come_from_the_input(orders: Cli, dash: list[str]) -> None:
    assert orders("publish", "orders.n", *dash, "--key", "k", stdin=b"a\nb\n\xff").status == 0
    [event] = published(orders)
    assert base64.b64decode(event["value_base64"]) == b"a\nb\n\xff"


def test_a_value_that_looks_like_an_option_stands_after_two_dashes(orders: Cli) -> None:
    assert orders("publish", "orders.n", "--key", "k", "--", "--key").status == 0
    assert orders("publish", "orders.n", "-5").status == 0
    assert sorted(event["value"] for event in published(orders)) == ["--key", "-5"]


def test_each_line_becomes_an_event(orders: Cli) -> None:
    done = orders("publish", "orders.n", "--lines", "--key", "k", stdin=b"1\n\n2\r\n3")
    assert done.out == "published 4 to orders\n"
    assert [event["value"] for event in published(orders)] == ["1", "", "2", "3"]
    assert orders("--json", "publish", "orders.n", "--lines").json == {
        "published_events": 0,
        "streams": {},
    }


def test_json_lines_carry_whole_events(orders: Cli) -> None:
    orders("stream", "create", "audit", "--subjects", "audit.>")
    events: list[dict[str, Any]] = [
        {"subject": "orders.n", "key": "k", "value": "text", "headers": {"a": ["1", "2"]}},
        {"subject": "orders.n", "key": "k", "value": {"a": [1, None]}, "epoch": [1, 2]},
        {"subject": "orders.n", "key": "k", "value_base64": base64.b64encode(b"\xff").decode()},
        {"subject": "audit.n", "value": 7, "headers": {"b": {"base64": "/w=="}}},
        {"subject": "audit.n", "value": None, "timestamp": "2013-07-04T10:30:00+02:00"},
    ]
    given = "\n\n".join(json.dumps(event) for event in events).encode()
    done = orders("--json", "publish", "--json-lines", stdin=given)
    assert done.json == {"published_events": 5, "streams": {"orders": 3, "audit": 2}}
    events[1]["value"] = '{"a":[1,null]}'
    assert published(orders) == events[:3]
    assert [event["value"] for event in published(orders, "audit")] == ["7", "null"]
    assert published(orders, "audit")[0]["headers"] == {"b": {"base64": "/w=="}}
    assert orders("read", "audit", "--json").lines[1]["timestamp"] == "2013-07-04T08:30:00Z"


@pytest.mark.parametrize("source", ["-", "a-file"])
def test_what_read_prints_can_be_published_elsewhere(orders: Cli, source: str) -> None:
    for i in range(5):
        orders("publish", f"orders.{i}", str(i), "--key", str(i), "--header", f"n={i}")
    printed = orders("read", "orders", "--json").out.encode()
    Path("a-file").write_bytes(printed)
    orders("--catalog", "copy", "stream", "create", "orders", "--subjects", "orders.>")
    done = orders("--catalog", "copy", "publish", "--json-lines", source, stdin=printed)
    assert done.status == 0
    copied = orders("--catalog", "copy", "read", "orders", "--json").lines
    for line in (*copied, *(originals := [json.loads(line) for line in printed.splitlines()])):
        del line["segment"], line["offset"]
    assert copied == originals


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not an object"),
        (b'{"value": "x"}', "no subject"),
        (b'{"subject": "orders.n"}', "either a value"),
        (b'{"subject": "orders.n", "value": 1, "value_base64": ""}', "either a value"),
        (b'{"subject": "orders.n", "value_base64": "%"}', "not base64"),
        (b'{"subject": "orders.n", "value": 1, "kee": 1}', "unknown fields kee"),
        (b'{"subject": "orders.n", "value": 1, "key": 1}', "key"),
        (b'{"subject": "orders.n", "value": 1, "headers": []}', "headers"),
        (b'{"subject": "orders.n", "value": 1, "headers": {"a": 1}}', "header 'a'"),
        (b'{"subject": "orders.n", "value": 1, "timestamp": 7}', "timestamp"),
        (b'{"subject": "orders.n", "value": 1, "timestamp": "noon"}', "timestamp"),
        (b'{"subject": "orders.n", "value": 1, "epoch": [true]}', "epoch"),
        (b'{"subject": "orders.n", "value": 1, "origin": {"region": "eu"}}', "origin cannot be"),
        (b'{"subject": "orders..n", "value": 1}', "empty"),
        (b'{"subject": "elsewhere", "value": 1}', "no stream"),
    ],
)
def test_a_bad_line_is_named_and_what_came_before_it_stays(
    orders: Cli, line: bytes, complaint: str
) -> None:
    good = b'{"subject": "orders.n", "value": "good"}\n'
    refused = orders("publish", "--json-lines", stdin=good + line + b"\n" + good)
    assert refused.status == 2
    assert "line 2" in refused.err
    assert complaint in refused.err
    assert "1 event before that stayed published" in refused.err
    assert refused.err.count("\n") == 1
    assert len(published(orders)) == 1
    as_json = orders("--json", "publish", "--json-lines", stdin=good + line)
    assert json.loads(as_json.err)["published_events"] == 1


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        ([], 2),
        (["orders..n", "x"], 2),
        (["elsewhere.n", "x"], 1),
        (["orders.n", "x", "--header", "no-value"], 2),
        (["orders.n", "x", "extra"], 2),
        (["orders.n", "x", "--kee", "k"], 2),
        (["orders.n", "x", "--lines"], 2),
        (["orders.n", "--lines", "--json-lines"], 2),
        (["orders..n", "--lines"], 2),
        (["orders.n", "x", "--stream", "orders"], 2),
        (["--json-lines", "--key", "k"], 2),
        (["--json-lines", "no-such-file"], 2),
        (["--file", "no-such.csv", "--subject", "a"], 2),
        (["--file", "empty.txt", "--subject", "a"], 2),
        (["--file", "bad.parquet", "--subject", "a"], 2),
        (["orders.n", "--file", "empty.txt"], 2),
        (["orders.n", "x", "--key", "k" * 2000], 2),
    ],
)
def test_wrong_usage_is_refused_and_publishes_nothing(
    orders: Cli, argv: list[str], status: int
) -> None:
    Path("empty.txt").touch()
    Path("bad.parquet").write_bytes(b"not parquet at all")
    refused = orders("publish", *argv)
    assert (refused.status, refused.out) == (status, "")
    assert refused.err.startswith("headrace: ")
    assert refused.err.count("\n") == 1
    assert published(orders) == []


# --- files ---------------------------------------------------------------------------------

SALES = pa.table(
    {
        "shop": ["eu", "us", "eu"],
        "item": ['ap"ple', "pear\n", None],
        "count": pa.array([1, None, 3], pa.int64()),
        "price": [0.5, float("nan"), 1e20],
        "paid": [True, False, None],
        "at": pa.array([datetime(2013, 7, 4, h, tzinfo=UTC) for h in (1, 2, 3)]),
        "tags": [["a", "b"], [], None],
    }
)


def rows_of(cli: Cli) -> list[dict[str, Any]]:
    return sorted(
        (
            {**line, "value": json.loads(line["value"])}
            for line in cli("read", "orders", "--json").lines
        ),
        key=lambda line: str(line["timestamp"]),
    )


def test_a_parquet_file_becomes_events_with_rows_as_json(orders: Cli) -> None:
    pq.write_table(SALES, "sales.parquet")
    done = orders(
        "publish", "--file", "sales.parquet", "--subject", "orders.{shop}.x{count}",
        "--key", "item", "--timestamp", "at",
    )  # fmt: skip
    assert done.status == 2
    assert "row 2" in done.err
    done = orders(
        "--json", "publish", "--file", "sales.parquet", "--stream", "orders",
        "--subject", "orders.{shop}", "--key", "item", "--timestamp", "at",
    )  # fmt: skip
    assert done.json == {"published_events": 3, "streams": {"orders": 3}}
    events = rows_of(orders)
    assert [event["subject"] for event in events] == ["orders.eu", "orders.us", "orders.eu"]
    assert [event.get("key") for event in events] == ['ap"ple', "pear\n", None]
    assert events[0]["timestamp"] == "2013-07-04T01:00:00Z"
    assert [event["value"] for event in events] == [
        {"shop": "eu", "item": 'ap"ple', "count": 1, "price": 0.5, "paid": True,
         "at": "2013-07-04T01:00:00Z", "tags": ["a", "b"]},
        {"shop": "us", "item": "pear\n", "count": None, "price": None, "paid": False,
         "at": "2013-07-04T02:00:00Z", "tags": []},
        {"shop": "eu", "item": None, "count": 3, "price": 1e20, "paid": None,
         "at": "2013-07-04T03:00:00Z", "tags": None},
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["sales.csv", "sales.csv.gz", "sales.tsv"])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_csv_file_becomes_events(orders: Cli, name: str, as_text: bool) -> None:
    delimiter = "\t" if "tsv" in name else ","
    lines = [["shop", "zip", "at"], ["eu", "10001", "2013-07-04T01:00:00Z"], ["us", "", ""]]
    data = "".join(delimiter.join(line) + "\n" for line in lines).encode()
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    done = orders(
        "publish", "--file", name, "--subject", "orders.{shop}", "--timestamp", "at",
        *(["--text"] if as_text else []),
    )  # fmt: skip
    assert done.status == 0
    first, second = rows_of(orders)
    assert first["value"]["zip"] == ("10001" if as_text else 10001)
    assert first["timestamp"] == "2013-07-04T01:00:00Z"
    assert second["value"] == {"shop": "us", "zip": None, "at": None}


def test_a_column_can_be_the_value(orders: Cli) -> None:
    pq.write_table(
        pa.table({"s": ["orders.a"], "n": [7], "day": [datetime(2013, 7, 4).date()]}), "n.parquet"
    )
    done = orders(
        "publish", "--file", "n.parquet", "--subject", "s", "--value", "n", "--timestamp", "day"
    )
    assert done.status == 0
    [event] = orders("read", "orders", "--json").lines
    assert (event["value"], event["timestamp"]) == ("7", "2013-07-04T00:00:00Z")


def test_a_file_whose_columns_are_an_event_s_own_needs_no_words(orders: Cli) -> None:
    pq.write_table(
        pa.table({"offset": [9], "subject": ["orders.a"], "value": [b"v"], "key": ["k"]}),
        "events.parquet",
    )
    assert orders("publish", "--file", "events.parquet").status == 0
    assert published(orders) == [{"subject": "orders.a", "value": "v", "key": "k"}]


def test_a_file_that_gives_events_an_origin_is_refused(orders: Cli) -> None:
    origins = [None, {"region": "eu", "sequence": 7}]
    pq.write_table(
        pa.table({"subject": ["orders.a"] * 2, "value": [b"v"] * 2, "origin": origins}),
        "events.parquet",
    )
    refused = orders("publish", "--file", "events.parquet")
    assert refused.status == 2
    assert "row 2 of events.parquet: origin cannot be given" in refused.err
    assert published(orders) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--subject", "orders.{nope}"], "no column 'nope'"),
        (["--subject", "nope"], "no column 'nope'"),
        (["--subject", "orders.{shop"], "not a template"),
        (["--subject", "orders.{shop:>5}"], "and nothing else"),
        (["--subject", "orders.{tags}"], "cannot be taken as text"),
        (["--subject", "orders.{item}"], "row 3"),
        (["--subject", "other.{shop}"], "no stream captures"),
        (["--subject", "other.{shop}", "--stream", "orders"], "captures"),
        (["--subject", "orders.{shop}", "--stream", "nope"], "no stream 'nope'"),
        (["--subject", "orders.{shop}", "--value", "nope"], "no column 'nope'"),
        (["--subject", "orders.{shop}", "--timestamp", "count"], "must hold times"),
        (["--subject", "orders.{shop}", "--timestamp", "shop"], "--timestamp"),
        (["--key", "shop"], "go with --subject"),
        ([], "say with --subject"),
    ],
)
def test_a_file_that_does_not_fit_publishes_nothing(
    orders: Cli, options: list[str], complaint: str
) -> None:
    pq.write_table(SALES, "sales.parquet")
    refused = orders("publish", "--file", "sales.parquet", *options)
    assert refused.status in (1, 2)
    assert complaint in refused.err
    assert published(orders) == []


def test_a_large_file_is_published_in_parts(orders: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.files.PART_ROWS", 10)
    subjects = ["orders.n"] * 34 + ["orders..bad"]
    pq.write_table(pa.table({"s": subjects, "n": range(35)}), "n.parquet")
    refused = orders("publish", "--file", "n.parquet", "--subject", "s", "--value", "n")
    assert refused.status == 2
    assert "row 35 of n.parquet" in refused.err
    assert "30 events before that stayed published" in refused.err
    assert [event["value"] for event in published(orders)] == [str(i) for i in range(30)]


def test_a_column_that_changes_its_kind_can_be_taken_as_text(
    orders: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.files.CSV_BLOCK_BYTES", 64)
    Path("odd.csv").write_text("shop,code\n" + "eu,1\n" * 40 + "eu,A7\n")
    argv = ("publish", "--file", "odd.csv", "--subject", "orders.{shop}")
    refused = orders(*argv)
    assert refused.status == 2
    assert "--text" in refused.err
    already = len(published(orders))
    assert orders(*argv, "--text").status == 0
    assert len(published(orders)) == already + 41
