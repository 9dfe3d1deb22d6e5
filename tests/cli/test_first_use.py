"""What a new user tries first: commands that lied, lost data or waited for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.catalog.streams import Limits, StreamConfig
from headrace.errors import StreamExistsError, SubscriptionExistsError
from headrace.log.log import Log
from tests.cli.conftest import Cli
from tests.support import SOURCES, wait_until


def audited(orders: Cli, count: int = 3) -> None:
    """A shared group that has read nothing of ``count`` events."""
    for n in range(count):
        assert orders("publish", "orders.eu", str(n), "--key", "k").status == 0
    assert (
        orders("group", "shared", "declare", "audit", "orders.>", "--start", "earliest").status == 0
    )


def left(orders: Cli) -> int:
    return len(orders("read", "orders", "--json").lines)


# --- trim ------------------------------------------------------------------------------------


def test_a_trim_before_a_time_in_the_future_is_refused(orders: Cli) -> None:
    audited(orders)
    refused = orders("stream", "trim", "orders", "--before", "2999-01-01", "--yes")
    assert (refused.status, refused.out) == (2, "")
    assert "--before 2999-01-01T00:00:00+00:00 lies in the future" in refused.err
    assert left(orders) == 3


def test_a_trim_that_takes_from_a_group_says_so_and_wants_a_yes(orders: Cli) -> None:
    audited(orders)
    tried = orders("stream", "trim", "orders", "--before", "0s", "--dry-run")
    assert "would remove 3 events" in tried.out
    assert "shared group $share/audit/orders.> has not acked 3 of them" in tried.out
    asked = orders("stream", "trim", "orders", "--before", "0s")
    assert (asked.status, asked.out, left(orders)) == (2, "", 3)
    assert "shared group $share/audit/orders.> has not acked 3; to trim it" in asked.err
    assert asked.err.count("\n") == 1
    done = orders("--json", "stream", "trim", "orders", "--before", "0s", "--yes").json
    assert (done["removed_events"], done["dry_run"]) == (3, False)
    assert done["losses"] == [
        {"group": "$share/audit/orders.>", "kind": "shared", "lost_events": 3, "exact": True,
         "segments": [done["losses"][0]["segments"][0]]}
    ]  # fmt: skip
    assert left(orders) == 0


def test_a_trim_that_takes_from_a_reader_group_wants_a_yes_too(orders: Cli) -> None:
    assert orders("publish", "orders.eu", "x", "--key", "k").status == 0
    assert orders("reader", "create", "report", "--streams", "orders").status == 0
    asked = orders("stream", "trim", "orders", "--before", "0s")
    assert (asked.status, asked.out, left(orders)) == (2, "", 1)
    assert "reader group reader/report has not acked 1; to trim it" in asked.err


def test_a_trim_that_takes_from_a_subscription_to_epochs_wants_a_yes_too(orders: Cli) -> None:
    assert orders("stream", "create", "days", "--subjects", "days.>", "--epochs", "int").status == 0
    for time in (1, 2, 3):
        given = ("days.eu", "x", "--time", str(time), "--advance-to", str(time + 1))
        assert orders("epoch", "publish", "days", *given).status == 0
    assert orders("epoch", "read", "days", "--name", "s", "--limit", "1").status == 0
    asked = orders("stream", "trim", "days", "--before", "0s")
    assert (asked.status, asked.out) == (2, "")
    assert "subscription epochs/days/s has not acked up to 2; to trim it" in asked.err
    assert orders("stream", "trim", "days", "--before", "0s", "--yes").status == 0
    told = orders("epoch", "decisions", "days", "--json").json
    assert [each["what"] for each in told][-1] == "trimmed past"


def test_a_broken_record_of_one_group_keeps_nobody_from_trimming_and_finding(orders: Cli) -> None:
    audited(orders, 1)
    database = sqlite3.connect("headrace-data/headrace.db")
    with database:
        database.execute("UPDATE entries SET value = x'00' WHERE bucket = 'shared-groups'")
    database.close()
    found = orders("find", "k")
    assert (found.status, "orders.eu" in found.out) == (0, True), found.err
    assert orders("stream", "trim", "orders", "--before", "0s").status == 0


def test_a_trim_that_takes_from_nobody_asks_nothing(orders: Cli) -> None:
    audited(orders, 4)
    assert orders("subscribe", "$share/audit/orders.>", "--limit", "4").status == 0
    done = orders("stream", "trim", "orders", "--before", "0s")
    assert (done.status, "removed 4 events" in done.out) == (0, True)


# --- create, publish, join -------------------------------------------------------------------


def test_the_progress_log_of_an_epoch_stream_is_not_trimmed(orders: Cli) -> None:
    assert orders("stream", "create", "days", "--subjects", "days.>", "--epochs", "int").status == 0
    refused = orders("stream", "trim", "days.epochs", "--before", "0s", "--yes")
    assert (refused.status, refused.out) == (2, "")
    assert "'days.epochs' belongs to an epoch stream and is not trimmed by hand" in refused.err


def test_a_stream_is_not_created_again_with_other_segments(orders: Cli) -> None:
    create = ("stream", "create", "orders", "--subjects", "orders.>")
    refused = orders(*create, "--segments", "7")
    assert (refused.status, refused.out) == (1, "")
    assert "it was made with 2 segments and not 7" in refused.err
    assert orders(*create, "--segments", "2").status == 0
    assert orders(*create).status == 0
    orders("stream", "scale", "orders", "--split", "0")
    assert orders(*create, "--segments", "2").status == 0  # as it was made


def test_what_differs_is_said(log: Log) -> None:
    log.create_stream("a", StreamConfig(subjects=("a.>",)))
    with pytest.raises(StreamExistsError, match=r'retention: .*limits.* and not .*"age_s":9'):
        log.create_stream("a", StreamConfig(subjects=("a.>",), retention=Limits(age_s=9)))


@pytest.mark.parametrize("argv", [["orders.n"], ["orders.n", "-"]])
def test_an_empty_input_is_no_event(orders: Cli, argv: list[str]) -> None:
    refused = orders("publish", *argv)
    assert (refused.status, refused.out, left(orders)) == (2, "", 0)
    assert "--empty for an event without one" in refused.err


def test_an_empty_event_is_published_when_it_is_asked_for(orders: Cli) -> None:
    assert orders("publish", "orders.n", "").status == 0
    assert orders("publish", "orders.n", "--empty").status == 0
    assert orders("publish", "orders.n", "x", "--empty").status == 2
    assert [line["value"] for line in orders("read", "orders", "--json").lines] == ["", ""]


def test_joining_what_does_not_exist_ends_with_the_names_there_are(orders: Cli) -> None:
    audited(orders)
    none = orders("group", "join", "orders", "nowhere", "m1")
    assert (none.status, none.out) == (2, "")
    assert "stream 'orders' has no group 'nowhere'; it has no groups yet" in none.err
    shared = orders("group", "join", "orders", "audit", "m1")
    assert shared.status == 2
    assert "headrace subscribe '$share/audit/orders.>'" in shared.err
    assert orders("group", "join", "orders", "nowhere", "m1", "--wait", "--idle", "0.1").status == 0


def test_joining_a_static_group_as_nobody_of_it_ends(cli: Cli) -> None:
    cli("stream", "create", "s", "--subjects", "s.>", "--partitions", "2")
    cli("group", "static", "create", "s", "g", "--max-members", "2", "--members", "m1,m2")
    refused = cli("group", "join", "s", "g", "m9")
    assert (refused.status, "they are: m1, m2" in refused.err) == (2, True)


# --- a worker that is started again ----------------------------------------------------------


def test_a_worker_subscribes_again_whenever_it_starts(catalog_url: str) -> None:
    async def life(*, start: str | None = None) -> list[bytes]:
        async with headrace.open(catalog_url) as hr:
            if not await hr.streams():
                await hr.create_stream("orders", ["orders.>"])
            async with hr.session("worker-1") as session:
                await session.subscribe("$share/audit/orders.>", start="earliest")
                await session.subscribe("orders.eu.>", start=start)
                await hr.publish("orders.eu.1", b"x", key="1")
                found = []
                for _ in range(2):
                    delivery = await asyncio.wait_for(anext(aiter(session)), 20)
                    await delivery.ack()
                    found.append(delivery.value)
                return found

    assert asyncio.run(life(start="now")) == [b"x", b"x"]
    assert asyncio.run(life(start="now")) == [b"x", b"x"]
    assert asyncio.run(life()) == [b"x", b"x"]
    with pytest.raises(SubscriptionExistsError, match="began at 'now', not at 'earliest'"):
        asyncio.run(life(start="earliest"))


# --- Ctrl-C, words, rows, nothing ------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["read", "orders", "--follow"],
        ["subscribe", "orders.>"],
        ["stream", "autoscale", "--all", "--watch", "60"],
        ["group", "join", "orders", "soon", "m1", "--wait"],
        ["region", "status", "--watch"],
    ],
    ids=lambda argv: argv[0],
)
def test_ctrl_c_ends_what_runs_until_then_whoever_started_it(
    orders: Cli, tmp_path: Path, argv: list[str]
) -> None:
    orders("publish", "orders.n", "x")
    code = "import sys; from headrace.cli import main; print('up', flush=True); main(sys.argv[1:])"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        running = subprocess.Popen(
            [sys.executable, "-c", code, *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": SOURCES},
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with running:
        assert running.stdout is not None
        running.stdout.readline()
        try:
            wait_until(lambda: _hears(running.pid), "the command to hear Ctrl-C")
            running.send_signal(signal.SIGINT)
            assert running.wait(20) in (130, -signal.SIGINT)
        finally:
            running.kill()


def _hears(pid: int) -> bool:
    """Whether a process does not ignore SIGINT (any more)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return not int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1
    raise AssertionError("no such line")


def test_messages_are_in_the_words_of_the_command_line(orders: Cli) -> None:
    orders("publish", "orders.n", "x")
    refused = orders("read", "orders", "--from", "3")
    assert (refused.status, refused.err) == (
        2,
        "headrace: --from 3 needs a single segment, and stream 'orders' has 2: give positions "
        "(0:120,1:98) or choose one with --segments\n",
    )
    refused = orders("stream", "create", "b", "--subjects", "b.>", "--segments", "0")
    assert refused.err == "headrace: --segments 0: a stream has 1 to 4096\n"
    refused = orders("stream", "rm", "nope", "--yes")
    assert (refused.status, "known streams: orders" in refused.err) == (2, True)


def test_rows_of_files_are_numbered_from_1(orders: Cli) -> None:
    orders("stream", "create", "days", "--subjects", "days.>", "--epochs", "1")
    for stream, argv in (("orders", ("publish",)), ("days", ("epoch", "publish", "days"))):
        Path("rows.csv").write_text(f"subject,value\n{stream}.a,x\n..bad,y\n")
        time = ("--time", "1") if stream == "days" else ()
        refused = orders(*argv, *time, "--file", "rows.csv")
        assert (refused.status, refused.out) == (2, "")
        assert refused.err.startswith("headrace: row 2"), refused.err


def test_a_list_of_groups_that_leaves_all_out_does_not_say_that_there_are_none(orders: Cli) -> None:
    audited(orders, 1)
    assert orders("group", "ls", "--stream", "other").out == "no such group among 1\n"
    wrong = orders("group", "ls", "--kind", "stattic")
    assert (wrong.status, wrong.out) == (2, "")
    assert "--kind stattic: there are static, elastic, shared, reader" in wrong.err


def test_an_empty_screen_says_so_and_what_to_do(orders: Cli) -> None:
    assert orders("read", "orders").err == (
        "headrace: stream 'orders' holds no events yet; publish one with: "
        "headrace publish orders.x VALUE\n"
    )
    assert orders("read", "orders", "--json").err == ""
    orders("publish", "orders.n", "x")
    assert "no such event among the 1 event of" in orders("read", "orders", "--from", "latest").err
    assert "no shared groups yet" in orders("group", "shared", "ls").out
    assert "no sessions; a worker makes one" in orders("session", "ls").out
