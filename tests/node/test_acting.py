"""Acting through a node on shared groups, reader groups and subscriptions to epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import headrace
from headrace.catalog import Tx, spark_readers
from headrace.catalog.spark_readers import LineRow
from headrace.groups.progress import Progress
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.spark_batches import OpenSpan, SparkLine, SparkOpening
from headrace.groups.readers.runtime import spark_records
from headrace.node.in_flight import spark_events
from tests.node.support import RunningNode, read_some, running
from tests.node.test_getting_in import made
from tests.support import wait_until

SHARED = f"/groups/{quote('$share/audit/orders.>', safe='')}"
READER = "/groups/reader%2Freport"
BILLING = "/groups/orders%2Fbilling"


@pytest.fixture
def filled(any_node: RunningNode) -> RunningNode:
    """A stream with ten events, a shared group, a reader group and a static group."""
    node = any_node

    async def fill() -> None:
        hr = node.hr
        await hr.create_stream("orders", ["orders.>"], partitions=1)
        await hr.shared_groups.declare("audit", "orders.>", start="earliest")
        await hr.reader_groups.create("report", streams=["orders"])
        await hr.groups.create_static("orders", "billing", max_members=1, members=["m1"])
        for at in range(10):
            await hr.publish(f"orders.eu.{at}", b"x", key=str(at))

    node.do(fill())
    wait_until(lambda: node.get("/overview")["groups_count"] == 3, "the groups")
    return node


def changed(node: RunningNode, path: str, body: dict[str, Any], method: str = "PATCH") -> Any:
    found = node.ask(method, f"/api/v1{path}", body)
    assert found.status == 200, found.body
    return found.json()


def refused(node: RunningNode, method: str, path: str, body: Any, status: int) -> str:
    found = node.ask(method, f"/api/v1{path}", body)
    assert found.status == status, found.body
    assert len(found.json()["detail"]) > 10
    return str(found.json()["title"])


# --- settings ------------------------------------------------------------------------------------


def test_a_shared_group_is_configured_after_a_preview(filled: RunningNode) -> None:
    before = filled.get(f"{SHARED}/settings")
    assert (before["shared"]["balance"], before["reader"]) == ("count", None)
    wanted = {"revision": before["revision"], "balance": "lag", "stall_timeout_ms": 120_000}
    plan = changed(filled, f"{SHARED}/settings", {**wanted, "dry_run": True})
    assert plan["dry_run"]
    assert plan["done"] == "balance from count to lag, stall_timeout_ms from 60000 to 120000"
    assert filled.get(f"{SHARED}/settings") == before
    changed(filled, f"{SHARED}/settings", wanted)
    after = filled.get(f"{SHARED}/settings")
    assert (after["shared"]["balance"], after["shared"]["stall_timeout_ms"]) == ("lag", 120_000)
    assert after["revision"] != before["revision"]
    known = filled.do(filled.hr.shared_groups.get("audit")).properties
    assert known.settings.stall_timeout_ms == 120_000
    assert refused(filled, "PATCH", f"{SHARED}/settings", wanted, 409) == "RevisionMoved"


def test_a_reader_group_is_configured_after_a_preview(filled: RunningNode) -> None:
    before = filled.get(f"{READER}/settings")
    assert before["reader"]["retain"] == "positions"
    wanted = {"revision": before["revision"], "retain": "checkpoint", "checkpoint_every_s": 30}
    plan = changed(filled, f"{READER}/settings", {**wanted, "dry_run": True})
    assert plan["done"].startswith("retain from positions to checkpoint, checkpoint_every_s from 0")
    assert filled.get(f"{READER}/settings") == before
    changed(filled, f"{READER}/settings", wanted)
    after = filled.get(f"{READER}/settings")["reader"]
    assert (after["retain"], after["checkpoint_every_s"]) == ("checkpoint", 30)
    assert after["checkpoints_kept"] == before["reader"]["checkpoints_kept"]
    # What a group reads does not move the revision of its settings.
    now = filled.get(f"{READER}/settings")["revision"]
    filled.do(read_some(filled, 2))
    assert filled.get(f"{READER}/settings")["revision"] == now
    assert refused(filled, "PATCH", f"{READER}/settings", wanted, 409) == "RevisionMoved"


def test_settings_that_make_no_sense_are_refused(filled: RunningNode) -> None:
    led, kept = (filled.get(f"{path}/settings") for path in (SHARED, READER))
    for path, body in (
        (SHARED, {"revision": led["revision"]}),
        (SHARED, {"revision": led["revision"], "balance": "lag", "retain": "nothing"}),
        (SHARED, {"revision": led["revision"], "balance": "luck"}),
        (SHARED, {"revision": led["revision"], "lease_ttl_ms": 10}),
        (READER, {"revision": kept["revision"], "balance": "lag", "retain": "nothing"}),
        (READER, {"revision": kept["revision"], "checkpoints_kept": 0}),
        (BILLING, {"revision": "x", "balance": "lag"}),
    ):
        refused(filled, "PATCH", f"{path}/settings", body, 400)
    assert refused(filled, "GET", f"{BILLING}/settings", None, 400)
    assert filled.get(f"{SHARED}/settings") == led
    assert filled.get(f"{READER}/settings") == kept


# --- reader groups -------------------------------------------------------------------------------


def test_a_checkpoint_is_taken_listed_and_gone_back_to(filled: RunningNode) -> None:
    filled.do(read_some(filled, 4))
    assert filled.get(f"{READER}/checkpoints") == []
    taken = filled.post(f"{READER}/checkpoints", {"checkpoint": "nightly"})
    assert taken["positions"] == {"orders/0": 4}
    assert taken["text"].startswith("headrace-checkpoint:")
    listed = filled.get(f"{READER}/checkpoints")
    assert [(each["name"], each["positions"]) for each in listed] == [("nightly", {"orders/0": 4})]
    filled.do(read_some(filled, 3))
    wait_until(lambda: filled.get(f"{READER}/units")["units"][0]["floor"] == 7, "its progress")
    plan = filled.post(f"{READER}/reset", {"checkpoint": "nightly", "dry_run": True})
    assert (plan["positions"], plan["again_events"], plan["skipped_events"]) == (
        {"orders/0": 4},
        3,
        0,
    )
    group = filled.do(filled.hr.reader_groups.get("report"))
    assert filled.do(group.lag()).events == 3  # nothing was moved
    wrong = {"checkpoint": "nightly", "name": "report"}
    assert refused(filled, "POST", f"{READER}/reset", wrong, 400) == "NameNotTyped"
    filled.post(f"{READER}/reset", {"checkpoint": "nightly", "name": "reader/report"})
    wait_until(lambda: filled.get(f"{READER}/units")["units"][0]["floor"] == 4, "the reset")
    plan = filled.post(f"{READER}/reset", {"to": "latest", "dry_run": True})
    assert (plan["again_events"], plan["skipped_events"]) == (0, 6)


def test_resets_and_checkpoints_that_make_no_sense_are_refused(filled: RunningNode) -> None:
    for body, status in (
        ({"checkpoint": "never", "dry_run": True}, 404),
        ({"checkpoint": "a", "to": "latest", "dry_run": True}, 400),
        ({"to": "0:3", "dry_run": True}, 400),
        ({"to": "yesterday", "dry_run": True}, 400),
    ):
        refused(filled, "POST", f"{READER}/reset", body, status)
    refused(filled, "POST", f"{READER}/checkpoints", {"checkpoint": "x" * 300}, 400)
    refused(filled, "POST", f"{READER}/checkpoints", {"checkpoint": "a", "wait_s": 0}, 400)
    refused(filled, "DELETE", f"{READER}/checkpoints/never", None, 404)
    refused(filled, "POST", f"{READER}/offline", {"reader": "never"}, 404)
    refused(filled, "POST", f"{SHARED}/checkpoints", {"checkpoint": "a"}, 400)
    refused(filled, "POST", f"{SHARED}/reset", {"dry_run": True}, 400)
    refused(filled, "POST", f"{SHARED}/offline", {"reader": "r", "dry_run": True}, 400)


def test_a_reader_is_put_offline_and_a_checkpoint_that_waits_is_given_up(
    filled: RunningNode,
) -> None:
    async def begin() -> tuple[Any, Any]:
        group = await filled.hr.reader_groups.get("report")
        reader = await group.reader("r1").__aenter__()
        async for delivery in reader:  # which it keeps
            return reader, delivery
        raise AssertionError

    reader, _ = filled.do(begin())
    body = {"checkpoint": "waits", "wait_s": 0.2}
    assert refused(filled, "POST", f"{READER}/checkpoints", body, 409) == "CheckpointTimeoutError"
    (found,) = filled.get(f"{READER}/checkpoints")
    assert found["blockers"] == ["r1"]
    assert changed(filled, f"{READER}/checkpoints/waits", {}, "DELETE")["done"]
    assert filled.get(f"{READER}/checkpoints") == []
    plan = filled.post(f"{READER}/offline", {"reader": "r1", "dry_run": True})
    assert plan["counts"] == {"segments": 1}
    assert "orders/0" in plan["done"]
    rewound = {"reader": "r1", "positions": {"orders/0": 0}, "rewind": True}
    assert refused(filled, "POST", f"{READER}/offline", rewound, 400) == "NameNotTyped"
    group = filled.do(filled.hr.reader_groups.get("report"))
    assert [each.reader for each in filled.do(group.info()).readers] == ["r1"]
    filled.post(f"{READER}/offline", {"reader": "r1"})

    told = [each["reason"] for each in filled.get(f"{READER}/decisions")]
    assert any("somebody put it offline" in reason for reason in told), told
    filled.do(reader.__aexit__(None, None, None))


# --- epochs --------------------------------------------------------------------------------------


def test_a_named_subscription_is_forgotten_with_its_name_typed(any_node: RunningNode) -> None:
    node = any_node

    async def subscribe() -> None:
        for stream in ("days", "hidden"):
            await node.hr.create_stream(stream, [f"{stream}.>"], epochs=headrace.Epochs())
            async with node.hr.epochs(stream, mode="whole", name=f"of-{stream}"):
                pass

    node.do(subscribe())
    wait_until(lambda: len(node.get("/epochs")) == 2, "the streams")
    found = node.get("/epoch-subscriptions")
    assert [(each["name"], each["streams"]) for each in found] == [
        ("of-days", ["days"]),
        ("of-hidden", ["hidden"]),
    ]
    scoped = made(node, "days", "admin", subjects=("days.>",))
    assert [each["name"] for each in node.get("/epoch-subscriptions", token=scoped)] == ["of-days"]
    path = "/api/v1/epoch-subscriptions"
    for name, token in (("of-hidden", scoped), ("never", scoped), ("never", "")):
        gone = node.ask("DELETE", f"{path}/{name}", {"name": name}, token=token)
        assert gone.status == 404, gone.body
    assert refused(node, "DELETE", "/epoch-subscriptions/of-days", {"name": "days"}, 400)
    plan = changed(node, "/epoch-subscriptions/of-days", {"name": "", "dry_run": True}, "DELETE")
    assert "to days" in plan["done"]
    assert len(node.get("/epoch-subscriptions")) == 2
    changed(node, "/epoch-subscriptions/of-days", {"name": "of-days"}, "DELETE")
    assert [each["name"] for each in node.get("/epoch-subscriptions")] == ["of-hidden"]


# --- who may -------------------------------------------------------------------------------------

CHANGES = (
    ("PATCH", f"{SHARED}/settings", {"revision": "x"}),
    ("POST", f"{READER}/checkpoints", {"checkpoint": "a"}),
    ("DELETE", f"{READER}/checkpoints/a", None),
    ("POST", f"{READER}/reset", {"dry_run": True}),
    ("POST", f"{READER}/offline", {"reader": "r1"}),
    ("DELETE", "/epoch-subscriptions/report", {"name": "report"}),
)


def test_only_an_admin_of_what_it_is_about_changes_it_and_it_is_written_down(
    node: RunningNode, tmp_path: Path
) -> None:
    async def fill() -> None:
        await node.hr.create_stream("orders", ["orders.>"])
        await node.hr.create_stream("other", ["other.>"])
        await node.hr.shared_groups.declare("audit", "orders.>", start="earliest")
        await node.hr.reader_groups.create("report", streams=["orders"])

    node.do(fill())
    wait_until(lambda: node.get("/overview")["groups_count"] == 2, "the groups")
    viewer, scoped = (
        made(node, "viewer", "read"),
        made(node, "scoped", "admin", subjects=("other.>",)),
    )
    for method, path, body in CHANGES:
        assert node.ask(method, f"/api/v1{path}", body, token=viewer).status == 403
        assert node.ask(method, f"/api/v1{path}", body, token=scoped).status == 404
    for path in (f"{SHARED}/settings", f"{READER}/settings", f"{READER}/checkpoints"):
        assert node.ask("GET", f"/api/v1{path}", token=viewer).status == 200
        assert node.ask("GET", f"/api/v1{path}", token=scoped).status == 404
    node.post(f"{READER}/checkpoints", {"checkpoint": "nightly"})
    line = node.get("/audit?limit=1")[0]
    assert (line["path"], line["status"]) == ("/api/v1/groups/reader/report/checkpoints", 200)
    assert "nightly" in line["about"]
    with running(str(tmp_path / "catalog"), read_only=True) as reads:
        for method, path, body in CHANGES:
            found = reads.ask(method, f"/api/v1{path}", body)
            assert found.json()["title"] in ("NotThere", "MethodNotAllowed")
        assert reads.get(f"{READER}/checkpoints")[0]["name"] == "nightly"


# --- in flight -----------------------------------------------------------------------------------


def test_units_tell_what_is_in_flight_where_it_is_known(
    filled: RunningNode, catalog_url: str
) -> None:
    async def hold(hr: headrace.Headrace, what: str) -> Any:
        """Somebody that has one event in hand, and what ends it."""
        group = await hr.reader_groups.get("report")
        reader = group.reader(what)
        found = reader if what == "r1" else hr.join("orders", "billing", member="m1")
        entered = await found.__aenter__()
        async for _ in entered:
            return entered
        raise AssertionError

    def units(path: str) -> list[tuple[Any, ...]]:
        found = filled.get(f"{path}/units")["units"]
        return [(each["member"], each["state"], each["in_flight_events"]) for each in found]

    def told(path: str, member: str, in_flight: int | None) -> None:
        wanted = [(member, "owned", in_flight)]
        wait_until(lambda: units(path) == wanted, f"{in_flight} in flight of {path}")

    assert units(READER) == [(None, "unowned", 0)]

    # Of another program only that one knows.
    async def elsewhere() -> None:
        async with headrace.open(catalog_url) as other:
            held = [await hold(other, each) for each in ("r1", "m1")]
            await filled.hr.in_thread(told, READER, "r1", None)
            await filled.hr.in_thread(told, BILLING, "m1", None)
            for each in held:
                await each.__aexit__(None, None, None)

    filled.do(elsewhere())
    for path, member in ((READER, "r1"), (BILLING, "m1")):
        mine = filled.do(hold(filled.hr, member))
        told(path, member, 1)
        assert filled.get(f"{path}/units?sort=-in_flight_events")["count"] == 1
        filled.do(mine.__aexit__(None, None, None))


def test_what_a_batch_of_spark_has_open_is_in_flight(filled: RunningNode) -> None:
    log = filled.hr.log
    segment = log.stream("orders").segments[0]
    span = OpenSpan(SegmentId("orders", 0), 1, ((0, 4), (6, 8)))
    opening = SparkOpening(batch="b", opening="o", times=1, life=1, spans=(span,))

    def run(tx: Tx) -> None:
        spark_records.put(tx, LineRow("line", "report", "r1", b""), SparkLine(opening=opening))
        row = spark_records.span_row(span, segment.id, None, Progress(0))
        spark_readers.put_spans(tx, "line", [row])

    assert log.catalog.read(lambda tx: spark_events(tx, "report")) == {}
    log.catalog.write(run)
    assert log.catalog.read(lambda tx: spark_events(tx, "report")) == {"orders/0": 6}
