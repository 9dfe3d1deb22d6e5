"""``headrace group shared``, ``headrace session`` and ``headrace subscribe``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

import headrace
from tests.cli.conftest import Cli
from tests.support import wait_until


def fill(orders: Cli, count: int = 3) -> None:
    lines = b"".join(
        b'{"subject": "orders.%d", "value": "v%d", "key": "%d"}\n' % (n, n, n) for n in range(count)
    )
    assert orders("publish", "--json-lines", "-", stdin=lines).status == 0


def test_a_group_is_declared_listed_shown_explained_and_removed(orders: Cli) -> None:
    fill(orders)
    made = orders(
        "group", "shared", "declare", "audit", "orders/#", "--start", "earliest", "--balance",
        "lag",
    )  # fmt: skip
    assert (made.status, made.err) == (0, "")
    assert "$share/audit/orders.>" in made.out
    again = orders(
        "group", "shared", "declare", "$share/audit/orders.>", "--start", "earliest",
        "--balance", "lag", "--json",
    )  # fmt: skip
    assert again.json["filter"] == "orders.>"
    [listed] = orders("group", "shared", "ls", "--json").json
    shown = orders("--json", "group", "shared", "info", "audit").json
    assert [one["what"] for one in shown["decisions"]] == ["configured"]
    assert {**listed, "decisions": shown["decisions"]} == shown  # a list tells of none
    assert (listed["group"], listed["start"], listed["lag_events"]) == (
        "$share/audit/orders.>",
        "earliest",
        3,
    )
    assert (listed["leader"], listed["members"]) == (None, [])
    assert [unit["unit"] for unit in listed["units"]] == ["orders/0", "orders/1"]
    assert "3 events to do" in orders("group", "shared", "info", "audit").out
    assert "audit" in orders("group", "shared", "ls").out
    assert "nobody" in orders("group", "shared", "explain", "audit").out
    gone = orders("group", "shared", "rm", "audit", "--json")
    assert gone.json == {"deleted": "$share/audit/orders.>", "dead_letters": 0}
    gone = orders("group", "shared", "info", "audit")
    assert gone.status == 2
    assert "there are none yet" in gone.err


def test_events_are_consumed_once_by_the_group_and_by_a_session_of_its_own(orders: Cli) -> None:
    fill(orders)
    consume = ("--start", "earliest", "--limit", "3", "--json")
    first = orders("subscribe", "$share/audit/orders.>", *consume)
    assert first.status == 0
    assert first.err.endswith(": subscribed to $share/audit/orders.>\n")
    assert sorted(line["value"] for line in first.lines) == ["v0", "v1", "v2"]
    assert {line["stream"] for line in first.lines} == {"orders"}
    fill(orders, 1)
    rest = orders("subscribe", "$share/audit/orders.>", "--limit", "1")
    assert (rest.status, rest.out.count("\n")) == (0, 1)
    assert "v0" in rest.out
    own = orders("subscribe", "orders.>", "--session", "log", *consume)
    assert len(own.lines) == 3
    idle = orders("subscribe", "orders.>", "--session", "log", "--idle", "0.3", "--json")
    assert len(idle.lines) == 1
    [session] = orders("session", "ls", "--json").json
    assert session == orders("session", "info", "log", "--json").json
    assert session["subscriptions"] == [
        {"text": "orders.>", "filter": "orders.>", "shared": False, "start": "earliest"}
    ]
    assert session["instance"] is None
    assert "log" in orders("session", "ls").out
    assert "private" in orders("session", "info", "log").out
    assert orders("session", "rm", "log").status == 0
    assert orders("session", "ls", "--json").json == []


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (("subscribe", "$share/audit"), 2, "filter is missing"),
        (("subscribe", "$share/a b/orders.>"), 2, "group name"),
        (("subscribe", "orders.>", "--limit", "0"), 2, "at least one"),
        (("subscribe", "orders.>", "--tls-cert", "c.pem"), 2, "--tls-cert and --tls-key"),
        (("subscribe", "orders.>", "--tls-ca", "ca.pem"), 2, "--tls-cert and --tls-key"),
        (("subscribe", "orders.>", "--tls-cert", "c", "--tls-key", "k"), 2, "c cannot be read"),
        (("subscribe", "orders.>", "--idle", "0"), 2, "longer than nothing"),
        (("subscribe", "orders.>", "--start", "whenever"), 2, "not a time"),
        (("group", "shared", "declare", "audit"), 2, "filter"),
        (("group", "shared", "declare", "audit", "orders..x"), 2, "orders..x"),
        (("group", "shared", "declare", "audit", "orders.>", "--balance", "luck"), 2, "luck"),
        (("group", "shared", "info", "nope"), 2, "no shared group"),
        (("group", "shared", "configure", "nope", "--balance", "lag"), 2, "no shared group"),
        (("group", "shared", "configure", "nope"), 2, "nothing to change"),
        (("group", "shared", "configure", "nope", "--lease-ttl", "soon"), 2, "not a duration"),
        (("group", "shared", "rm", "nope"), 2, "no shared group"),
        (("group", "shared", "explain", "nope"), 2, "no shared group"),
        (("session", "info", "nope"), 2, "no session"),
        (("session", "rm", "nope"), 2, "no session"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    orders: Cli, argv: tuple[str, ...], status: int, said: str
) -> None:
    refused = orders(*argv)
    assert (refused.status, refused.out) == (status, "")
    assert said in refused.err
    assert refused.err.count("\n") == 1
    assert orders("group", "shared", "ls", "--json").json == []
    assert orders("session", "ls", "--json").json == []


def test_a_group_is_configured_and_what_is_not_given_stays(orders: Cli) -> None:
    configure = ("group", "shared", "configure")
    assert orders("group", "shared", "declare", "audit", "orders.>").status == 0
    said = orders(*configure, "audit", "--balance", "lag", "--stall-timeout", "2m")
    assert (said.status, said.err) == (0, "")
    assert "balanced by lag" in said.out
    assert "stalls for 120 s" in said.out
    changed = orders(
        *configure, "$share/audit/orders.>", "--lease-ttl", "0.5s", "--heartbeat", "0.2s",
        "--scale-for-members", "--lag-slack", "30", "--json",
    ).json  # fmt: skip
    settings = changed["settings"]
    assert (settings["stall_timeout_ms"], settings["balance"]) == (120_000, "lag")
    assert (settings["lease_ttl_ms"], settings["heartbeat_ms"]) == (500, 200)
    assert (settings["lag_slack_percent"], changed["scale_for_members"]) == (30, True)
    [listed] = orders("group", "shared", "ls", "--json").json
    assert listed["settings"] == settings
    back = orders(*configure, "audit", "--no-scale-for-members", "--json").json
    assert (back["scale_for_members"], back["settings"]) == (False, settings)
    for bad in (("--heartbeat", "0.4s"), ("--stall-timeout", "0s"), ("--lag-slack", "0")):
        refused = orders(*configure, "audit", *bad)
        assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert orders("group", "shared", "ls", "--json").json == [listed | back]


def test_dead_letters_go_with_their_group_and_with_their_session(orders: Cli) -> None:
    fill(orders, 2)

    async def refuse(text: str) -> None:
        async with (
            headrace.open("headrace-data", housekeeping=False) as hr,
            hr.session("w") as session,
        ):
            await session.subscribe(text, start="earliest")
            for _ in range(2):
                delivery = await anext(aiter(session))
                await delivery.reject("no")

    def internal() -> list[str]:
        found = orders("stream", "ls", "--internal", "--json").json
        return sorted(each["stream"] for each in found if each["stream"] != "orders")

    for text in ("$share/audit/orders.>", "orders.>"):
        asyncio.run(asyncio.wait_for(refuse(text), 30))
    assert internal() == ["audit:orders.>.dead", "~w:orders.>.dead"]
    assert "with 2 dead letters" in orders("group", "shared", "rm", "audit", "--force").out
    assert internal() == ["~w:orders.>.dead"]
    removed = orders("session", "rm", "w", "--json").json
    assert removed == {"deleted": "w", "dead_letters": 2}
    assert internal() == []


def test_a_group_and_a_session_in_use_are_removed_only_by_force(orders: Cli) -> None:
    worker = subprocess.Popen(
        [
            sys.executable, "-m", "headrace", "subscribe", "$share/audit/orders.>",
            "--session", "w", "--start", "earliest",
        ],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        fill(orders, 1)
        assert worker.stdout is not None
        assert b"v0" in worker.stdout.readline()

        def joined() -> bool:
            found = orders("group", "shared", "explain", "audit", "--json").json
            return [one["units"] for one in found["members"]] == [2]

        wait_until(joined, "the member to be seen")
        assert "has 2 segments" in orders("group", "shared", "explain", "audit").out
        for argv in (("group", "shared", "rm", "audit"), ("session", "rm", "w")):
            refused = orders(*argv)
            assert refused.status == 1
            assert "force" in refused.err
        assert orders("group", "shared", "rm", "audit", "--force").status == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
        assert orders("session", "info", "w", "--json").json["instance"] is None
    finally:
        worker.kill()
        worker.wait()


def test_a_filter_that_matches_no_stream_yet_is_told_of(orders: Cli) -> None:
    made = orders("group", "shared", "declare", "audit", "shoes.>")
    assert (made.status, "no stream captures such subjects yet" in made.out) == (0, True)
    assert "no stream" not in orders("group", "shared", "declare", "audit", "orders.>").out
    waiting = orders("subscribe", "$share/audit/shoes.>", "--idle", "0.2")
    assert (waiting.status, "no stream captures such subjects yet" in waiting.err) == (0, True)


def test_records_that_cannot_be_read_are_named_and_can_be_removed(orders: Cli) -> None:
    """One broken record costs one line, and nothing of anybody else's."""
    assert orders("stream", "create", "p", "--subjects", "p.>", "--partitions", "2").status == 0
    for group in ("fine", "broken"):
        create = ("group", "static", "create", "p", group, "--max-members", "2", "--members", "m")
        assert orders(*create).status == 0
    for group in ("good", "bad"):
        assert orders("group", "shared", "declare", group, "orders.>").status == 0
    for name in ("w1", "w2"):
        quick = ("--session", name, "--idle", "0.01")
        assert orders("subscribe", "orders.>", *quick).status == 0
    with contextlib.closing(sqlite3.connect("headrace-data/headrace.db")) as db, db:
        for key in ("p.broken", "bad:orders.>", "w2"):
            done = db.execute("UPDATE entries SET value = X'7B22' WHERE key = ?", (key,))
            assert done.rowcount == 1, key
    words: tuple[str, ...]
    listings: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
        (("session", "ls"), "w1", "w2", "session 'w2' cannot be read"),
        (("group", "shared", "ls"), "good", "bad", "shared group 'bad:orders.>' cannot be read"),
        (("group", "static", "ls"), "fine", "broken", "static group p.broken"),
    )
    for words, good, bad, said in listings:
        listed = orders(*words)
        assert listed.status == 0
        assert (good in listed.out, bad in listed.out) == (True, False)
        (line,) = listed.err.splitlines()
        assert line.startswith("headrace: left out: ")
        assert said in line
    for words in (("session", "info", "w2"), ("group", "shared", "info", "bad")):
        shown = orders(*words)
        assert (shown.status, len(shown.err.splitlines())) == (1, 1), shown.err
        assert "cannot be read" in shown.err
    others = orders("subscribe", "orders.>", "--session", "w1", "--idle", "0.01")
    assert (others.status, "goes on with" in others.err) == (0, True)
    for words in (
        ("session", "rm", "w2"),
        ("group", "shared", "rm", "bad"),
        ("group", "static", "rm", "p", "broken", "--yes"),
    ):
        assert orders(*words).status == 0, words
    for words, *_ in listings:
        assert orders(*words).err == "", words
