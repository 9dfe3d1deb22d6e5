"""``headrace stream``."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_a_stream_is_created_listed_and_shown(cli: Cli) -> None:
    made = cli(
        "--catalog", "data", "stream", "create", "orders",
        "--subjects", "orders.>,returns.*", "--segments", "4", "--key-tokens", "1,2",
        "--retention-age", "7d", "--retention-bytes", "10GB", "--scale-events", "500",
        "--scale-factor", "4", "--scale-min", "2",
    )  # fmt: skip
    assert (made.status, made.err) == (0, "")
    assert "orders" in made.out
    [listed] = cli("stream", "ls", "--json", "--catalog", "data").json
    shown = cli("--json", "--catalog=data", "stream", "info", "orders").json
    assert listed | {"consumers": []} == shown
    assert shown["subjects"] == ["orders.>", "returns.*"]
    assert shown["key_tokens"] == [1, 2]
    assert shown["retention"] == {"type": "limits", "age_s": 604_800, "bytes": 10**10}
    assert shown["scaling"] == {"type": "events", "target_per_s": 500, "factor": 4, "minimum": 2}
    assert [segment["range"] for segment in shown["segments"]] == [
        [part << 30, (part + 1) << 30] for part in range(4)
    ]
    for_people = cli("stream", "info", "orders", "--catalog", "data").out
    assert "keeps at most 1w and 10.0 GB" in for_people
    assert "40000000-7fffffff" in for_people
    assert "orders.>, returns.*" in cli("stream", "ls", "--catalog", "data").out


def test_creating_the_same_stream_again_changes_nothing(orders: Cli) -> None:
    assert orders("stream", "create", "orders", "--subjects", "orders.>").status == 0
    assert len(orders("--json", "stream", "info", "orders").json["segments"]) == 2
    other = orders("stream", "create", "orders", "--subjects", "orders.*")
    assert (other.status, other.out) == (1, "")
    overlap = orders("stream", "create", "more", "--subjects", "orders.eu.>")
    assert overlap.status == 1
    assert "overlaps" in overlap.err


@pytest.mark.parametrize(
    ("option", "kept"),
    [
        (["--retention", "consumed"], {"type": "consumed"}),
        (["--retention", "limits"], {"type": "limits"}),
        (
            ["--retention", "groups", "--keep-events", "10", "--retention-age", "2h"],
            {"type": "groups", "keep": {"type": "limits", "events": 10},
             "cap": {"type": "limits", "age_s": 7200}},
        ),
    ],
)  # fmt: skip
def test_policies_can_be_changed(orders: Cli, option: list[str], kept: dict[str, object]) -> None:
    assert orders("stream", "set", "orders", "--scale-bytes", "1MiB").status == 0
    changed = orders("--json", "stream", "set", "orders", *option).json
    assert changed["retention"] == kept
    assert changed["scaling"]["target_per_s"] == 2**20
    assert orders("stream", "set", "orders", "--scaling", "fixed", "--json").json["scaling"] == {
        "type": "fixed"
    }
    assert "keeps" in orders("stream", "set", "orders", *option).out


def test_segments_are_split_merged_and_retiled(orders: Cli) -> None:
    split = orders("--json", "stream", "scale", "orders", "--split", "0", "--into", "3").json
    assert split == {"stream": "orders", "dry_run": False, "sealed": [0], "opened": [2, 3, 4],
                     "reason": ""}  # fmt: skip
    assert "2, 3 → 5" in orders("stream", "scale", "orders", "--merge", "2,3").out
    retiled = orders(
        "stream", "scale", "orders", "--seal", "1,4", "--json",
        "--ranges", "1431655764-3000000000,3000000000-4294967296",
    )  # fmt: skip
    assert retiled.status == 2
    assert "cover" in retiled.err
    retiled = orders(
        "stream", "scale", "orders", "--seal", "1,4",
        "--ranges", "1431655765-3000000000,3000000000-4294967296",
    )  # fmt: skip
    assert retiled.status == 0
    edges = {
        segment["segment"]: (segment["predecessors"], segment["successors"])
        for segment in orders("--json", "stream", "info", "orders").json["segments"]
    }
    assert edges[0] == ([], [2, 3, 4])
    assert edges[5] == ([2, 3], [])
    assert edges[6] == ([1, 4], [])
    assert "2, 3 → open" in orders("stream", "info", "orders").out


def test_a_sealed_segment_cannot_be_split_again(orders: Cli) -> None:
    assert orders("stream", "scale", "orders", "--split", "0").status == 0
    again = orders("stream", "scale", "orders", "--split", "0")
    assert again.status == 1
    assert "sealed" in again.err
    assert orders("stream", "scale", "orders", "--split", "9").status == 2


def test_autoscale_splits_what_is_hot(orders: Cli) -> None:
    orders("stream", "set", "orders", "--scale-events", "1")
    orders("publish", "orders.n", "--lines", stdin=b"x\n" * 3000)
    # The stream is a copy of one that was made when the tests began.
    _let_be_old(Path("headrace-data"), 0)
    assert "nothing to scale" in orders("stream", "autoscale", "orders").out
    _let_be_old(Path("headrace-data"), 1000)
    would = orders("stream", "autoscale", "--all", "--dry-run")
    assert "would split" in would.out
    dry = orders("stream", "autoscale", "orders", "--dry-run", "--json").lines
    assert [(each["opened"], each["dry_run"]) for each in dry] == [([], True)]
    [done] = orders("stream", "autoscale", "orders", "--json").lines
    assert len(done["opened"]) == 2
    assert "events/s" in done["reason"]
    assert orders("stream", "autoscale", "orders", "--json").lines == []


def _let_be_old(folder: Path, seconds: int) -> None:
    """Let the segments be so old."""
    [file] = [path for path in folder.iterdir() if path.suffix in (".db", ".sqlite")]
    connection = sqlite3.connect(file)
    with connection:
        born_us = (time.time_ns() // 1000) - seconds * 10**6
        connection.execute("UPDATE segments SET created_us = ?", (born_us,))
    connection.close()


def test_events_are_trimmed_by_policy_position_or_time(orders: Cli) -> None:
    for i in range(6):
        orders("publish", "orders.n", str(i), "--key", "k")
    [segment] = {line["segment"] for line in orders("read", "orders", "--json").lines}
    assert "removed 0 events" in orders("stream", "trim", "orders").out
    assert "removed 2 events" in orders("stream", "trim", "orders", "--before", f"{segment}:2").out
    beyond = orders("stream", "trim", "orders", "--before", f"{segment}:7")
    assert (beyond.status, "which ends at 6" in beyond.err) == (2, True)
    orders("stream", "set", "orders", "--retention-events", "3")
    trimmed = orders("--json", "stream", "trim", "orders").json["segments"]
    assert {"segment": segment, "first_offset": 3, "removed_events": 1} in trimmed
    assert [line["offset"] for line in orders("read", "orders", "--json").lines] == [3, 4, 5]
    assert orders("stream", "trim", "orders", "--before", "0s").status == 0
    assert orders("read", "orders", "--json").out == ""


def test_a_stream_that_groups_consume_is_deleted_only_by_force(orders: Cli) -> None:
    assert orders("group", "shared", "declare", "audit", "orders.>").status == 0
    refused = orders("stream", "rm", "orders", "--yes")
    assert refused.status == 1
    assert refused.err.count("\n") == 1
    assert "shared group 'audit:orders.>'" in refused.err
    assert orders("stream", "info", "orders").status == 0
    asked = orders("stream", "rm", "orders", "--force")
    assert asked.status == 2
    assert "--yes" in asked.err
    assert orders("stream", "rm", "orders", "--yes", "--force").status == 0
    assert orders("group", "shared", "info", "audit").status == 0


def test_a_stream_is_deleted_only_with_a_yes(orders: Cli) -> None:
    refused = orders("stream", "rm", "orders")
    assert refused.status == 2
    assert "--yes" in refused.err
    assert orders("stream", "rm", "orders", "--yes", "--json").json == {"deleted": "orders"}
    assert orders("stream", "rm", "orders", "--yes").status == 2
    assert "no streams yet" in orders("stream", "ls").out


@pytest.mark.parametrize(
    "argv",
    [
        ["create", "bad name", "--subjects", "a.>"],
        ["create", "other", "--subjects", "a..b"],
        ["create", "other", "--subjects", ","],
        ["create", "other"],
        ["create", "other", "--subjects", "a.>", "--segments", "0"],
        ["create", "other", "--subjects", "a.>", "--segments", "many"],
        ["create", "other", "--subjects", "a.>", "--key-tokens", "0"],
        ["create", "other", "--subjects", "a.>", "--key-tokens", "x"],
        ["create", "other", "--subjects", "a.>", "--retention-age", "soon"],
        ["create", "other", "--subjects", "a.>", "--retention-bytes", "much"],
        ["create", "other", "--subjects", "a.>", "--retention-events", "0"],
        ["create", "other", "--subjects", "a.>", "--retention", "never"],
        ["create", "other", "--subjects", "a.>", "--keep-age", "1d"],
        ["create", "other", "--subjects", "a.>", "--retention", "consumed",
         "--retention-age", "1d"],
        ["create", "other", "--subjects", "a.>", "--scale-events", "5", "--scale-bytes", "5"],
        ["create", "other", "--subjects", "a.>", "--scale-events", "0"],
        ["create", "other", "--subjects", "a.>", "--scale-min", "2"],
        ["create", "other", "--subjects", "a.>", "--scale-events", "5", "--scale-factor", "99"],
        ["set", "orders"],
        ["set", "orders", "--scaling", "fixed", "--scale-events", "5"],
        ["scale", "orders"],
        ["scale", "orders", "--split", "0", "--merge", "0,1"],
        ["scale", "orders", "--split", "0", "--into", "1"],
        ["scale", "orders", "--merge", "0"],
        ["scale", "orders", "--merge", "0,x"],
        ["scale", "orders", "--merge", "0,1", "--into", "2"],
        ["scale", "orders", "--seal", "0"],
        ["scale", "orders", "--seal", "0", "--ranges", "0-x"],
        ["scale", "orders", "--seal", "0", "--ranges", "5-5"],
        ["autoscale"],
        ["autoscale", "orders", "--all"],
        ["autoscale", "orders", "--watch", "0"],
        ["trim", "orders", "--before", "latest"],
        ["trim", "orders", "--before", "12"],
        ["trim", "orders", "--before", "0:1,0:2"],
        ["trim", "orders", "--before", "0:1,x"],
        ["info"],
        ["info", "orders", "extra"],
        ["inform", "orders"],
        ["ls", "--all"],
    ],
)  # fmt: skip
def test_wrong_usage_is_refused_in_one_line_and_changes_nothing(
    orders: Cli, argv: list[str]
) -> None:
    before = orders("--json", "stream", "ls").json
    refused = orders("stream", *argv)
    assert refused.status == 2
    assert refused.out == ""
    assert refused.err.startswith("headrace: ")
    assert refused.err.count("\n") == 1
    assert orders("--json", "stream", "ls").json == before
