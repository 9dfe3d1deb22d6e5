"""What a node says of a catalog: overview, streams, groups, events, keys; live."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from headrace.catalog import Tx
from headrace.groups import decisions
from headrace.groups.decisions import Decision, What, ranges
from tests.node.support import LiveClient, RunningNode
from tests.support import wait_until

SHARED = "$share/audit/orders.>"


@pytest.fixture
def filled(any_node: RunningNode) -> RunningNode:
    """A stream with events, a static and a shared group."""
    node = any_node

    async def fill() -> None:
        hr = node.hr
        await hr.create_stream("orders", ["orders.>"], partitions=2)
        await hr.groups.create_static("orders", "billing", max_members=2, members=["m1"])
        await hr.shared_groups.declare("audit", "orders.>", start="earliest")
        for at in range(10):
            await hr.publish(f"orders.eu.{at}", b'{"total": %d}' % at, key=str(at))

    node.do(fill())
    wait_until(
        lambda: (
            node.get("/overview")["groups_count"] == 2
            and node.get("/streams/orders")["line"]["retained_events"] == 10
        ),
        "the node to see it",
    )
    return node


def test_the_overview_tells_what_needs_attention(filled: RunningNode) -> None:
    found = filled.get("/overview")
    assert [each["stream"] for each in found["streams"]] == ["orders"]
    assert {each["group"] for each in found["groups"]} == {"orders/billing", SHARED}
    assert not found["well"]
    assert any(each["about"] == "orders/billing" for each in found["findings"])
    assert found["look_age_s"] < 20


def test_groups_of_every_kind_have_units_lag_members_and_decisions(filled: RunningNode) -> None:
    for name in ("orders/billing", SHARED):
        path = f"/groups/{quote(name, safe='')}"
        assert filled.get(path)["line"]["lag_events"] == 10
        assert filled.get(f"{path}/units")["count"] >= 1
        assert filled.get(f"{path}/lag")["lag_events"] == 10
        assert isinstance(filled.get(f"{path}/members"), list)
        assert isinstance(filled.get(f"{path}/decisions"), list)
        assert filled.get(f"{path}/history")[-1]["figures"][0] == 10


def test_lists_are_sorted_filtered_and_paged_by_the_server(filled: RunningNode) -> None:
    assert [g["group"] for g in filled.get("/groups?sort=-group")["groups"]] == sorted(
        ["orders/billing", SHARED], reverse=True
    )
    assert filled.get("/groups?kind=static")["count"] == 1
    page = filled.get("/groups?limit=1&offset=1&sort=group")
    assert (len(page["groups"]), page["count"]) == (1, 2)
    refused = filled.ask("GET", "/api/v1/groups?sort=nonsense")
    assert refused.status == 400


def test_segments_and_findings_have_lists_of_their_own(filled: RunningNode) -> None:
    page = filled.get("/streams/orders/segments?sort=-segment&limit=1")
    assert ([each["segment"] for each in page["segments"]], page["count"]) == ([1], 2)
    every = filled.get("/streams/orders/segments")["segments"]
    assert every == filled.get("/streams/orders")["segments"]
    found = filled.get("/findings")
    assert found["count"] == len(found["findings"]) == len(filled.get("/overview")["findings"])
    assert filled.get("/findings?limit=1&q=billing")["findings"][0]["about"] == "orders/billing"
    of_one = filled.get("/groups/orders%2Fbilling/findings")
    kept = ("finding", "about", "needs_person")
    assert [{name: one[name] for name in kept} for one in of_one] == [
        {name: one[name] for name in kept}
        for one in found["findings"]
        if one["about"] == "orders/billing"
    ]
    assert filled.ask("GET", "/api/v1/streams/none/segments").status == 404
    assert filled.ask("GET", "/api/v1/groups/none%2Fnone/fenced").status == 404


def test_who_was_fenced_is_listed_by_instance_the_last_first(filled: RunningNode) -> None:
    assert filled.get("/groups/orders%2Fbilling/fenced") == []

    def fence(tx: Tx) -> None:
        for instance, token in (("host-1", 3), ("host-2", 4), ("host-1", 5)):
            one = Decision(
                what=What.FENCED,
                reason="taken from it: its tokens are stale",
                source="m1",
                instance=instance,
                units=ranges([0, 1]),
                token=token,
            )
            decisions.record(tx, "orders/billing", [one])

    catalog = filled.hr.log.catalog
    catalog.write(fence, locks=decisions.locks("orders/billing"))
    found = filled.get("/groups/orders%2Fbilling/fenced")
    assert [(each["instance"], each["token"], each["times"]) for each in found] == [
        ("host-1", 5, 2),
        ("host-2", 4, 1),
    ]
    first = found[0]
    assert (first["from"], first["units"]) == ("m1", "partitions 0-1")
    assert first["first_at"] <= first["last_at"]


def scanned(node: RunningNode, query: str) -> list[dict[str, Any]]:
    """All that a scan finds; it goes on where its budget ended, as on a machine that is busy."""
    found: list[dict[str, Any]] = []
    start = "earliest"
    while start:
        part = node.get(f"/streams/orders/events?start={quote(start)}{query}")
        found += part["events"]
        start = part["next"]
    return found


def test_events_are_found_by_key_text_header_and_json_fields(filled: RunningNode) -> None:
    every = scanned(filled, "&limit=100")
    assert len(every) == 10
    by_key = scanned(filled, "&key=3")
    assert [(each["value"], each["form"]) for each in by_key] == [('{"total": 3}', "json")]
    found = scanned(filled, "&where=" + quote("total >= 8"))
    assert sorted(each["key"] for each in found) == ["8", "9"]
    assert len(scanned(filled, "&text=total")) == 10
    assert scanned(filled, "&header=none") == []
    one = every[0]
    same = filled.get(f"/streams/orders/event?segment={one['segment']}&offset={one['offset']}")
    assert same["value"] == one["value"]


def test_a_scan_that_is_cut_goes_on_where_it_stopped(filled: RunningNode) -> None:
    seen: list[str] = []
    start = "earliest"
    for _ in range(10):
        part = filled.get(f"/streams/orders/events?start={quote(start)}&limit=3")
        seen += [each["key"] for each in part["events"]]
        start = part["next"]
        if not start:
            break
    assert sorted(seen) == [str(at) for at in range(10)]


def test_a_tail_keeps_to_its_segments_and_says_what_it_left_out(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.node.tailing.TAIL_PER_S", 3)

    async def fill() -> list[int]:
        await node.hr.create_stream("orders", ["orders.>"], segments=2)
        return [(await node.hr.publish("orders.a", b"1", key=str(k))).segment for k in range(40)]

    places = node.do(fill())
    assert 3 < places.count(1) < 40
    path = "/api/v1/streams/orders/tail?start=earliest&segments=1"
    tail = LiveClient(node, path)
    sent, told = 0, 0
    while told < places.count(1):
        _, data = tail.until("event")
        assert {each["segment"] for each in data["events"]} <= {1}
        assert len(data["events"]) <= 3
        sent += len(data["events"])
        told += len(data["events"]) + data["left_out"]
    assert told == places.count(1)
    assert sent >= 3
    tail.close()


def test_a_key_is_found_with_its_groups(filled: RunningNode) -> None:
    found = filled.get("/keys?key=3")
    assert 0 <= found["at"] < 1
    assert {each["group"] for each in found["found"]["units"]} >= {SHARED}
    assert [each["subject"] for each in found["found"]["events"]] == ["orders.eu.3"]


def test_a_split_lies_on_the_map(node: RunningNode) -> None:
    async def split() -> None:
        await node.hr.create_stream("orders", ["orders.>"])
        await node.hr.in_thread(node.hr.log.split, "orders", 0, 2)

    node.do(split())
    found = wait_until(
        lambda: len((f := node.get("/streams/orders"))["segments"]) == 3 and f, "three tiles"
    )
    first, *parts = found["segments"]
    assert first["sealed_at"] <= parts[0]["opened_at"]
    assert [each["predecessors"] for each in parts] == [[0], [0]]
    assert (parts[0]["key_from"], parts[0]["key_to"], parts[1]["key_to"]) == (0, 0.5, 1)


def test_a_change_is_told_live_and_a_cut_stream_goes_on(node: RunningNode) -> None:
    live = LiveClient(node, "/api/v1/live")
    last, state = live.until("state")
    assert state["streams"] == []
    node.do(node.hr.create_stream("orders", ["orders.>"]))
    last, change = live.until("change")
    while not change["streams"]:
        last, change = live.until("change")
    assert [each["stream"] for each in change["streams"]] == ["orders"]
    live.close()
    node.do(node.hr.create_stream("paid", ["paid.>"]))
    wait_until(lambda: node.get("/overview")["streams_count"] == 2, "the second stream")
    again = LiveClient(node, "/api/v1/live", {"last-event-id": last})
    event, _, data = again.next()
    assert event == "change"
    assert [each["stream"] for each in data["streams"]] == ["paid"]
    again.close()
    other = LiveClient(node, "/api/v1/live", {"last-event-id": "elsewhere-3"})
    assert other.next()[0] == "state"
    other.close()


def test_decisions_are_told_live_and_the_past_is_rebuilt(node: RunningNode) -> None:
    async def consume() -> None:
        hr = node.hr
        await hr.create_stream("orders", ["orders.>"], partitions=2)
        await hr.groups.create_static("orders", "billing", max_members=2, members=["m1"])
        await hr.publish("orders.a", b"1", key="1")
        async with hr.join("orders", "billing", member="m1") as member:
            async for delivery in member:
                await delivery.ack()
                break

    live = LiveClient(node, "/api/v1/live?watch=overview")
    live.until("state")
    node.do(consume())
    _, decided = live.until("decision")
    assert decided[0]["group"] == "orders/billing"
    live.close()
    path = "/groups/orders%2Fbilling"
    wait_until(lambda: node.get(f"{path}/decisions"), "decisions")
    decisions = node.get(f"{path}/decisions")
    assert all(each["reason"] for each in decisions)
    at = quote(decisions[-1]["at"])
    past = node.get(f"{path}/past?at={at}")
    assert past["last"]["number"] == decisions[-1]["number"]


def test_metrics_name_what_the_list_says(filled: RunningNode) -> None:
    from headrace.node.metrics import METRICS

    text = filled.ask("GET", "/metrics").body.decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names <= {each.name for each in METRICS}
    of = 'group="orders/billing",kind="static",stream="orders"'
    assert f"headrace_group_lag_events{{{of}}} 10.0" in text


def test_health_needs_no_token_and_says_nothing_else(node: RunningNode) -> None:
    for path, said in (("/healthz", b"alive\n"), ("/readyz", b"ready\n")):
        found = node.ask("GET", path, token=None)
        assert (found.status, found.body) == (200, said)


def test_a_stream_changes_when_its_groups_do(filled: RunningNode) -> None:
    live = LiveClient(filled, "/api/v1/live?watch=overview")
    live.until("state")
    filled.do(filled.hr.groups.create_static("orders", "late", max_members=2, members=["m1"]))
    while True:
        _, told = live.until("change")
        lines = [each for each in told["streams"] if each["stream"] == "orders"]
        if lines and "orders/late" in lines[0]["groups"]:
            break
    live.close()
