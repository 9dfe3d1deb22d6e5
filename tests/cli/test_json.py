"""What ``--json`` prints is what ``docs/json.md`` says; the fixture compares every answer."""

from __future__ import annotations

import json

import pytest

from tests import json_page
from tests.cli.conftest import Cli

SHARED = "$share/audit/orders.>"
GROUPS: tuple[tuple[str, ...], ...] = (
    ("stream", "create", "p", "--subjects", "p.>", "--partitions", "2"),
    ("stream", "ls"),
    ("publish", "p.1", "x"),
    ("publish", "orders.1", "y", "--key", "k"),
    ("read", "p"),
    ("group", "static", "create", "p", "audit", "--max-members", "2", "--members", "m1,m2"),
    ("group", "static", "info", "p", "audit"),
    ("group", "static", "ls"),
    ("group", "active", "p", "audit"),
    ("group", "partitions", "p", "audit", "m1"),
    ("group", "elastic", "create", "orders", "bill", "--max-members", "2", "--filter", "orders.*",
     "--wildcards", "1", "--members", "m1"),
    ("group", "elastic", "info", "orders", "bill"),
    ("group", "elastic", "ls"),
    ("group", "elastic", "members", "add", "orders", "bill", "m2"),
    ("group", "elastic", "members", "drop", "orders", "bill", "m2"),
    ("group", "elastic", "members", "orders/bill"),
    ("group", "elastic", "mapping", "set", "orders", "bill", "m1:0", "m2:1"),
    ("group", "elastic", "mapping", "unset", "orders", "bill"),
    ("group", "shared", "declare", "audit", "orders.>", "--start", "earliest"),
    ("group", "shared", "configure", "audit", "--balance", "lag"),
    ("group", "shared", "ls"),
    ("group", "shared", "info", "audit"),
    ("group", "shared", "explain", "audit"),
    ("subscribe", SHARED, "--session", "w", "--limit", "1"),
    ("session", "ls"),
    ("session", "info", "w"),
    ("group", "ls"),
    ("group", "info", "p/audit"),
    ("group", "explain", "p/audit"),
    ("group", "lag"),
    ("group", "lag", "p/audit"),
    ("group", "decisions", "p/audit"),
    ("group", "members", "p/audit"),
    ("group", "seek", "p/audit", "--to", "latest", "--dry-run"),
    ("group", "dead", "ls", "p/audit"),
    ("group", "dead", "reasons", "p/audit"),
    ("find", "k"),
    ("status",),
    ("group", "static", "rm", "p", "audit", "--yes"),
    ("group", "elastic", "rm", "orders", "bill", "--yes"),
    ("group", "shared", "rm", "audit", "--force"),
    ("session", "rm", "w"),
)  # fmt: skip
STORED: tuple[tuple[str, ...], ...] = (
    ("stream", "set", "orders", "--retention-age", "1h"),
    ("stream", "info", "orders"),
    ("stream", "scale", "orders", "--split", "0"),
    ("stream", "autoscale", "orders", "--dry-run"),
    ("stream", "compact", "orders", "--dry-run"),
    ("stream", "compact", "orders", "--policy", "on"),
    ("stream", "trim", "orders", "--before", "1h"),
    ("store", "sweep", "--dry-run"),
    ("catalog", "migrate"),
    ("token", "create", "grafana", "--role", "view"),
    ("token", "ls"),
    ("token", "rm", "grafana"),
    ("pipeline", "status"),
    ("stream", "rm", "orders", "--yes"),
)
READERS: tuple[tuple[str, ...], ...] = (
    ("publish", "orders.1", "x"),
    ("publish", "orders.2", "x"),
    ("stream", "create", "more", "--subjects", "more.>"),
    ("reader", "create", "report", "--streams", "orders"),
    ("reader", "ls"),
    ("reader", "read", "report", "r1", "--limit", "1"),
    ("reader", "info", "report"),
    ("reader", "lag", "report"),
    ("reader", "explain", "report"),
    ("reader", "configure", "report", "--checkpoints-kept", "4"),
    ("reader", "checkpoint", "report", "nightly"),
    ("reader", "cut", "report"),
    ("reader", "reset", "report", "--start", "earliest", "--dry-run"),
    ("reader", "offline", "report", "r1"),
    ("reader", "streams", "add", "report", "more"),
    ("reader", "streams", "drop", "report", "more"),
    ("reader", "rm", "report", "--yes"),
)
EPOCHS: tuple[tuple[str, ...], ...] = (
    ("stream", "create", "days", "--subjects", "days.>", "--epochs", "1"),
    ("epoch", "publish", "days", "days.a", "x", "--time", "1", "--advance-to", "2"),
    ("epoch", "publish", "days", "days.a", "x", "--time", "5", "--publisher", "eu"),
    ("epoch", "advance", "days", "4"),
    ("epoch", "read", "days", "--name", "report"),
    ("epoch", "status", "days"),
    ("epoch", "explain", "days"),
    ("epoch", "decisions", "days"),
    ("epoch", "subscriptions"),
    ("epoch", "release", "days", "eu"),
    ("epoch", "forget", "report"),
    ("epoch", "close", "days"),
)
REGIONS: tuple[tuple[str, ...], ...] = (
    ("region", "name", "eu"),
    ("region", "renew"),
    ("region", "name", "us", "--catalog", "./us"),
    ("region", "link", "orders", "us=./us"),
    ("group", "shared", "declare", "audit", "orders.>"),
    ("region", "group", "enable", SHARED, "--home", "eu"),
    ("region", "status"),
    ("region", "check", "orders"),
    ("region", "explain", SHARED),
    ("region", "synced", SHARED),
    ("region", "snapshot", "force", "orders", "--dry-run"),
    ("region", "snapshot", "list", "orders"),
    ("region", "pause", "us"),
    ("region", "resume", "us"),
    ("region", "fail-over", "--lost", "us", "--force", "--dry-run"),
    ("region", "rejoin", "us"),
    ("region", "group", "disable", SHARED),
    ("region", "unlink", "orders"),
    ("region", "unlink", "orders", "--catalog", "./us"),
    ("region", "link", "orders", "us=./us", "--writers", "us"),
    ("region", "promote", "orders", "--force"),
    ("region", "remove", "us", "--force"),
)


@pytest.mark.parametrize(
    "story", [GROUPS, STORED, READERS, EPOCHS, REGIONS], ids=lambda story: " ".join(story[-1][:2])
)
def test_every_answer_is_one_of_the_page(orders: Cli, story: tuple[tuple[str, ...], ...]) -> None:
    for words in story:
        said = orders(*words, "--json")  # which compares it with the page
        assert said.status in (0, 1), (words, said.err)
        assert said.out or words[1] == "autoscale", (words, said.err)
        assert not said.err.startswith('{"error"'), (words, said.err)


def test_a_name_that_the_page_does_not_have_is_seen() -> None:
    told = {"deleted": "orders"}
    assert json_page.check_printed(["stream", "rm"], json.dumps(told)) == "stream rm"
    for wrong in (told | {"also": 1}, {"removed": "orders"}):
        with pytest.raises(AssertionError, match="stream rm printed"):
            json_page.check_printed(["stream", "rm"], json.dumps(wrong))
