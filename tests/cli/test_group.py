"""``headrace group``: static and elastic groups from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import headrace.sync
from headrace.groups.partitioned.names import GroupName
from headrace.log.open import open_log
from tests.cli.conftest import Cli, Result
from tests.groups.partitioned.runtime.feeder import fill


@pytest.fixture
def billing(orders: Cli) -> Cli:
    """The stream ``orders`` with an elastic group ``billing`` of four partitions."""
    made = orders(
        "group", "elastic", "create", "orders", "billing", "--max-members", "4",
        "--filter", "orders.*.*", "--wildcards", "2", "--members", "m1,m2",
    )  # fmt: skip
    assert (made.status, made.err) == (0, "")
    return orders


def queue_up(cli: Cli, *events: tuple[str, str]) -> None:
    for subject, value in events:
        assert cli("publish", subject, value).status == 0
    log = open_log("headrace-data", None)
    fill(log, GroupName("orders", "billing"))
    log.catalog.close()


def test_a_work_queue_that_nobody_fills_is_told_of(billing: Cli) -> None:
    assert billing("publish", "orders.eu.1", "x").status == 0
    for words in (("elastic", "info"), ("explain",), ("lag",)):
        said = billing("group", *words, "orders", "billing")
        assert "no pipeline runs to fill it; start one with: headrace pipeline" in said.out, words
    found = billing("--json", "group", "elastic", "info", "orders", "billing").json["finding"]
    assert found == billing("--json", "group", "lag", "orders", "billing").json["finding"]


def test_an_elastic_group_is_created_listed_shown_and_removed(billing: Cli) -> None:
    shown = billing("--json", "group", "elastic", "info", "orders", "billing").json
    assert shown["finding"] == ""
    assert shown["assignment"] == {"m1": [0, 1], "m2": [2, 3]}
    assert shown["wildcards"] == [2]
    assert (shown["kind"], shown["stream"], shown["group"]) == (
        "elastic",
        "orders",
        "orders/billing",
    )
    assert billing("--json", "group", "elastic", "ls", "orders").json == [shown]
    assert "billing" in billing("group", "elastic", "ls").out
    assert "m2      2-3" in billing("group", "elastic", "info", "orders", "billing").out
    assert billing("--json", "group", "static", "ls").json == []
    assert "no static groups yet" in billing("group", "static", "ls").out
    asked = billing("group", "elastic", "rm", "orders", "billing")
    assert (asked.status, "add --yes" in asked.err) == (2, True)
    assert billing("group", "elastic", "rm", "orders", "billing", "--yes").status == 0
    gone = billing("group", "elastic", "info", "orders", "billing")
    assert (gone.status, gone.out) == (2, "")
    assert (
        gone.err
        == "headrace: stream 'orders' has no elastic group 'billing'; it has no groups yet\n"
    )


def test_a_static_group_is_created_with_members_or_with_mappings(cli: Cli) -> None:
    assert cli("stream", "create", "orders", "--subjects", "o.>", "--partitions", "3").status == 0
    made = cli(
        "--json", "group", "static", "create", "orders", "audit", "--max-members", "3",
        "--mapping", "m1:0,2", "--mapping", "m2:1", "--filter", "o.eu.>", "--start", "latest",
    )  # fmt: skip
    assert made.json["assignment"] == {"m1": [0, 2], "m2": [1]}
    assert cli("group", "static", "info", "orders", "audit").status == 0
    other = cli("group", "static", "create", "orders", "b", "--max-members", "3", "--members", "x")
    assert "static group b on orders: 3 partitions" in other.out
    changed = cli("group", "members", "add", "orders", "audit", "m3")
    assert (changed.status, "static and cannot change" in changed.err) == (1, True)
    assert cli("group", "static", "rm", "orders", "audit", "--yes", "--json").json == {
        "deleted": "orders/audit"
    }


def test_members_and_mappings_change(billing: Cli) -> None:
    added = billing("--json", "group", "members", "add", "orders", "billing", "m3,m4").json
    assert list(added["assignment"]) == ["m1", "m2", "m3", "m4"]
    dropped = billing("--json", "group", "elastic", "members", "drop", "orders", "billing", "m3")
    assert list(dropped.json["assignment"]) == ["m1", "m2", "m4"]
    mapped = billing("--json", "group", "mapping", "set", "orders", "billing", "a:0,1", "b:2,3")
    assert mapped.json["assignment"] == {"a": [0, 1], "b": [2, 3]}
    assert billing("--json", "group", "partitions", "orders", "billing", "b").json == {
        "group": "orders/billing",
        "member": "b",
        "partitions": [2, 3],
    }
    assert billing("group", "partitions", "orders", "billing", "a").out == "0, 1\n"
    back = billing("--json", "group", "mapping", "unset", "orders", "billing", "--members", "z")
    assert back.json["assignment"] == {"z": [0, 1, 2, 3]}


def test_active_lag_and_explain_tell_who_is_missing(billing: Cli) -> None:
    queue_up(billing, ("orders.eu.1", "one"), ("orders.eu.2", "two"))
    billing("publish", "orders.eu.3", "not partitioned yet")
    active = billing("--json", "group", "active", "orders", "billing").json
    assert active["active"] == []
    assert active["missing"] == ["m1", "m2"]
    assert active["unconsumed"] == [0, 1, 2, 3]
    assert "nobody consumes partitions 0-3" in billing("group", "active", "orders", "billing").out
    lag = billing("--json", "group", "lag", "orders", "billing").json
    assert (lag["lag_events"], lag["source_events"], len(lag["units"])) == (3, 1, 4)
    assert "1 of them not partitioned yet" in billing("group", "lag", "orders", "billing").out
    explained = billing("--json", "group", "explain", "orders", "billing").json
    first = explained["findings"][0]
    assert first["sentence"] == "no instance of m1 runs: partitions 0-1 are not consumed"
    assert first["next"] == "start one: headrace group join orders billing m1"
    assert "no instance of m2" in billing("group", "explain", "orders", "billing").out


def test_join_prints_what_it_gets_and_acks_it(billing: Cli) -> None:
    queue_up(billing, *((f"orders.eu.{n}", f"value {n}") for n in range(6)))
    billing("group", "mapping", "set", "orders", "billing", "m1:0,1,2,3")
    first = billing("--json", "group", "join", "orders", "billing", "m1", "--limit", "4")
    assert first.status == 0
    assert "m1: active; partitions: 0, 1, 2, 3" in first.err
    rest = billing("group", "join", "orders", "billing", "m1", "--limit", "2")
    values = sorted(line["value"] for line in first.lines)
    assert len(values) == 4
    assert all(line["subject"].startswith("orders.eu.") for line in first.lines)
    others = sorted(line.rpartition("  ")[2] for line in rest.out.splitlines())
    assert sorted(values + others) == [f"value {n}" for n in range(6)]
    assert billing("--json", "group", "lag", "orders", "billing").json["lag_events"] == 0
    decisions = billing("--json", "group", "explain", "orders", "billing").json["decisions"]
    assert {"pinned", "assigned"} <= {one["what"] for one in decisions}


def test_join_runs_a_command_for_each_event(billing: Cli, tmp_path: Path) -> None:
    queue_up(billing, ("orders.eu.1", "one"), ("orders.us.2", "two"))
    billing("group", "mapping", "set", "orders", "billing", "m1:0,1,2,3")
    out = tmp_path / "out"
    script = tmp_path / "work.sh"
    script.write_text(
        "#!/bin/sh\n"
        f"exec >> {out}\n"
        'echo "$HEADRACE_SUBJECT|$HEADRACE_KEY|$HEADRACE_POSITION|$HEADRACE_ATTEMPT|$(cat)"\n'
        # The first time round, one of them fails.
        '[ "$HEADRACE_SUBJECT" = orders.us.2 ] && [ "$HEADRACE_ATTEMPT" = 1 ] && exit 3\nexit 0\n'
    )
    script.chmod(0o755)
    done = billing(
        "group", "join", "orders", "billing", "m1", "--exec", str(script), "--limit", "3"
    )
    assert done.status == 0
    ran = sorted(line.split("|") for line in out.read_text().splitlines())
    assert [(line[0], line[3], line[4]) for line in ran] == [
        ("orders.eu.1", "1", "one"),
        ("orders.us.2", "1", "two"),
        ("orders.us.2", "2", "two"),
    ]
    assert ran[0][2].startswith("orders.billing/")
    assert billing("--json", "group", "lag", "orders", "billing").json["lag_events"] == 0


def test_a_key_that_an_environment_cannot_hold_is_given_in_base64(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_KEY", "inherited")
    with headrace.sync.open("headrace-data") as hr:
        hr.create_stream("p", ["p.>"], partitions=1)
        hr.groups.create_static("p", "g", max_members=1, members=["m"])
        hr.publish("p.x", b"poison", key="a\0b")
        hr.publish("p.x", b"after", key="c")
    script = tmp_path / "work.sh"
    script.write_text(
        f'#!/bin/sh\necho "${{HEADRACE_KEY-unset}}|$HEADRACE_KEY_BASE64|$(cat)" >> {tmp_path}/out\n'
    )
    script.chmod(0o755)
    joined = cli("group", "join", "p", "g", "m", "--exec", str(script), "--limit", "2")
    assert joined.status == 0, joined.err
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines == ["unset|YQBi|poison", "c|Yw==|after"]
    assert cli("--json", "group", "lag", "p", "g").json["lag_events"] == 0


def test_explain_tells_of_dead_letters(billing: Cli) -> None:
    queue_up(billing, ("orders.eu.1", "one"))
    billing("group", "mapping", "set", "orders", "billing", "m1:0,1,2,3")
    join = ("group", "join", "orders", "billing", "m1", "--max-deliveries", "1")
    assert billing(*join, "--exec", "false", "--limit", "1").status == 0
    said = billing("group", "explain", "orders", "billing").out
    assert "dead letter: orders.eu.1 at offset 0: nacked after 1 delivery: false exited" in said
    assert billing("group", "elastic", "rm", "orders", "billing", "--yes").status == 0


def test_a_member_that_is_asked_to_end_hands_over_first(billing: Cli) -> None:
    command = [sys.executable, "-m", "headrace", "group", "join", "orders", "billing", "m1"]
    with subprocess.Popen(
        [*command, "--pin-ttl-ms", "60000"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = iter(process.stderr.readline, "")
        assert any("active; partitions: 0, 1" in line for line in said)
        process.terminate()
        assert process.wait(20) == 0
    active = billing("--json", "group", "active", "orders", "billing").json
    assert active["active"] == []
    decisions = billing("--json", "group", "explain", "orders", "billing").json["decisions"]
    assert (decisions[-1]["what"], decisions[-1]["reason"]) == ("left", "it closes")


def test_a_name_that_is_no_member_waits_and_says_so(billing: Cli) -> None:
    waited = billing("group", "join", "orders", "billing", "m9", "--idle", "0.2")
    assert waited.status == 0
    assert "m9: m9 is not a member of the group; members are: m1, m2" in waited.err
    waited = billing("group", "join", "orders", "nowhere", "m1", "--wait", "--idle", "0.2")
    assert "m1: there is no such group" in waited.err


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["elastic", "create", "orders", "x", "--max-members", "0", "--filter", "orders.*"], 2,
         "--max-members is 0; a group needs at least 1 partition"),
        (["elastic", "create", "orders", "x", "--max-members", "2", "--filter", "orders.>"], 2,
         "filter 'orders.>' has no '*'; the partition is made from them"),
        (["elastic", "create", "orders", "x", "--max-members", "2", "--filter", "orders.*",
          "--wildcards", "2"], 2, "partitioning wildcard 2 does not exist"),
        (["elastic", "create", "orders", "x", "--max-members", "2", "--filter", "orders.*",
          "--wildcards", "one"], 2, "'one' is not a list of whole numbers"),
        (["elastic", "create", "orders", "billing", "--max-members", "9", "--filter", "orders.*"],
         1, "exists with another config"),
        (["elastic", "create", "nowhere", "x", "--max-members", "2", "--filter", "a.*"], 2,
         "there is no stream 'nowhere'"),
        (["elastic", "create", "orders", "a.b", "--max-members", "2", "--filter", "a.*"], 2,
         "group name"),
        (["elastic", "create", "orders", "x", "--max-members", "2", "--filter", "a.*",
          "--start", "7"], 2, "not a place for a group"),
        (["elastic", "rm", "orders", "nobody", "--yes"], 2, "has no elastic group 'nobody'"),
        (["static", "rm", "orders", "billing", "--yes"], 2, "has no static group 'billing'"),
        (["members", "add", "orders", "billing", ","], 2, "name at least one member"),
        (["members", "add", "orders", "billing", "a b"], 2, "member name"),
        (["mapping", "set", "orders", "billing", "m1"], 2, "is not a mapping"),
        (["mapping", "set", "orders", "billing", "m1:0,x"], 2, "not a list of whole numbers"),
        (["mapping", "set", "orders", "billing", "m1:0,1"], 2, "2 of 4 partitions are not mapped"),
        (["mapping", "set", "orders", "billing", "m1:0,1,2,3", "m2:3"], 2, "mapped twice"),
        (["mapping", "set", "orders", "billing", "m1:0,1,2,4"], 2, "does not exist"),
        (["mapping", "unset", "orders", "billing"], 1, "no mapping to delete"),
        (["step-down", "orders", "billing", "m1"], 1, "has no active instance"),
        (["step-down", "orders", "billing", "m9"], 2, "is not a member"),
        (["partitions", "orders", "billing", "m9"], 2, "members are: m1, m2"),
        (["active", "orders", "nobody"], 2, "its groups are: billing"),
        (["explain", "orders", "nobody"], 2, "there are: orders/billing"),
        (["lag", "orders", "nobody"], 2, "there are: orders/billing"),
        (["explain", "orders", "billing", "--limit", "-1"], 2, "give 0 to 10000"),
        (["join", "orders", "billing", "m1", "--limit", "0"], 2, "take at least one event"),
        (["join", "orders", "billing", "m1", "--idle", "0"], 2, "wait for longer"),
        (["join", "orders", "billing", "m1", "--exec", " "], 2, "give a command"),
        (["join", "orders", "billing", "m1", "--exec", "./nope.sh"], 2, "no command './nope.sh'"),
        (["join", "orders", "billing", "m1", "--pin-ttl-ms", "1"], 2, "--pin-ttl-ms is 1"),
        (["join", "orders", "bill.ing", "m1"], 2, "group name"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line_and_changes_nothing(
    billing: Cli, argv: list[str], status: int, message: str
) -> None:
    before = billing("--json", "group", "elastic", "ls").json
    done: Result = billing("group", *argv)
    assert (done.status, done.out) == (status, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    told = billing("--json", "group", *argv)
    assert message in json.loads(told.err)["message"]
    assert billing("--json", "group", "elastic", "ls").json == before


def test_adding_members_under_a_mapping_is_refused(billing: Cli) -> None:
    billing("group", "mapping", "set", "orders", "billing", "m1:0,1,2,3")
    for verb in ("add", "drop"):
        refused = billing("group", "members", verb, "orders", "billing", "m1")
        assert (refused.status, "partitions are mapped" in refused.err) == (1, True)


def test_every_command_has_an_example(billing: Cli) -> None:
    for words in (
        ["static", "create"], ["elastic", "create"], ["static", "info"], ["elastic", "rm"],
        ["members", "add"], ["mapping", "set"], ["active"], ["step-down"], ["partitions"],
        ["join"], ["explain"], ["lag"],
    ):  # fmt: skip
        shown = billing("group", *words, "--help")
        assert shown.status == 0
        assert f"headrace group {' '.join(words)}" in " ".join(shown.out.split())
