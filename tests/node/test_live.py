"""The live stream's kinds that are asked for: lag of groups, and events of streams."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from tests.node.support import LiveClient, RunningNode, read_some
from tests.node.test_getting_in import made
from tests.support import wait_until

GROUP = "reader/report"


@pytest.fixture
def filled(any_node: RunningNode) -> RunningNode:
    """Two streams, and a reader group of each."""
    node = any_node

    async def fill() -> None:
        for name, group in (("orders", "report"), ("secret", "spy")):
            await node.hr.create_stream(name, [f"{name}.>"])
            await node.hr.reader_groups.create(group, streams=[name])
            for at in range(10):
                await node.hr.publish(f"{name}.eu.{at}", b"x", key=str(at))

    node.do(fill())

    def lags() -> list[int]:
        return [each["lag_events"] for each in node.get("/groups")["groups"]]

    wait_until(lambda: lags() == [10, 10], "all events to be seen")
    return node


def listening(node: RunningNode, watch: str, token: str = "", **headers: str) -> LiveClient:
    if token:
        headers["authorization"] = f"Bearer {token}"
    return LiveClient(node, f"/api/v1/live?watch={watch}", headers)


def test_the_lag_of_groups_is_told_as_it_changes(filled: RunningNode) -> None:
    every, one = listening(filled, "lag"), listening(filled, f"lag:{GROUP}")
    plain = listening(filled, "overview")
    for live, known in ((every, {GROUP, "reader/spy"}), (one, {GROUP})):
        _, first = live.until("lag")
        assert {each["group"]: each["lag_events"] for each in first["groups"]} == dict.fromkeys(
            known, 10
        )
        assert first["left_out"] == 0
    filled.do(read_some(filled, 4))
    last = ""
    for live in (every, one):
        while True:
            last, told = live.until("lag")
            by_name = {each["group"]: each for each in told["groups"]}
            assert live is every or set(by_name) == {GROUP}
            if by_name.get(GROUP, {}).get("lag_events") == 6:
                break
        assert by_name[GROUP]["lag_seconds"] > 0
        assert by_name[GROUP]["exact"]
    # Only those who ask for it are told; and whoever comes back hears of what changed since.
    assert {plain.next()[0] for _ in range(2)} <= {"state", "change", "decision"}
    for live in (every, one, plain):
        live.close()
    filled.do(read_some(filled, 1))
    again = listening(filled, f"lag:{GROUP}", **{"last-event-id": last})
    wait_until(lambda: again.until("lag")[1]["groups"][0]["lag_events"] == 5, "the newest lag")
    again.close()


def test_of_too_many_groups_the_furthest_behind_are_told(
    filled: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.node.live.LAGS_MAX", 1)
    live = listening(filled, "lag")
    _, first = live.until("lag")
    assert ([each["group"] for each in first["groups"]], first["left_out"]) == ([GROUP], 1)
    live.close()


async def publish(node: RunningNode, count: int, subject: str = "orders.new") -> None:
    for at in range(count):
        await node.hr.publish(subject, f"value {at}".encode(), key=str(at))


def test_events_are_told_as_they_come_and_where_one_may_go_on(filled: RunningNode) -> None:
    live = listening(filled, "events:orders%20events:secret")
    began = {data["stream"]: data for data in (live.until("event")[1] for _ in range(2))}
    assert began["orders"]["events"] == began["secret"]["events"] == []
    assert began["orders"]["next"] == "0:10"
    filled.do(publish(filled, 3))
    seen: list[str] = []
    while len(seen) < 3:
        id, data = live.until("event")
        assert (data["stream"], data["left_out"], id) == ("orders", 0, "")
        seen += [each["value"] for each in data["events"]]
    assert seen == ["value 0", "value 1", "value 2"]
    assert data["next"] == "0:13"
    live.close()
    filled.do(publish(filled, 1))
    tail = LiveClient(filled, f"/api/v1/streams/orders/tail?start={data['next']}")
    last, data = tail.until("event")
    assert [each["offset"] for each in data["events"]] == [13]
    assert data["next"] == last == "0:14"
    tail.close()
    filled.do(publish(filled, 2))
    path = "/api/v1/streams/orders/tail?start=latest"
    again = LiveClient(filled, path, {"last-event-id": last})
    assert again.until("event")[1]["events"][0]["offset"] == 14
    again.close()
    other = LiveClient(filled, path, {"last-event-id": "elsewhere-3"})
    assert other.status == 200
    other.close()


@pytest.mark.parametrize(
    ("bound", "most"),
    [("TAIL_PER_S", 3), ("HELD_BYTES_MAX", 25)],  # three values have more than 20 bytes
)
def test_events_are_bounded_and_what_was_left_out_is_counted(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(f"headrace.node.tailing.{bound}", most)
    node.do(node.hr.create_stream("orders", ["orders.>"]))
    live = listening(node, "events:orders")
    live.until("event")
    burst = [headrace.Event(subject="orders.a", value=b"value %d" % at) for at in range(40)]
    node.do(node.hr.append("orders", burst))
    sent: list[Any] = []
    left = 0
    while len(sent) + left < 40:
        _, data = live.until("event")
        assert len(data["events"]) <= 3
        sent += data["events"]
        left += data["left_out"]
    assert (len(sent) + left, sent[-1]["value"]) == (40, "value 39")
    assert left >= 30
    live.close()


def test_events_are_for_those_who_may_read_them(filled: RunningNode) -> None:
    viewer = made(filled, "viewer", "view")
    reader = made(filled, "reader", "read", subjects=("orders.eu.>",))
    for watch, token, status in (
        ("events:orders", viewer, 403),
        ("events:secret", reader, 404),
        ("events:absent", reader, 404),
        ("events:", "", 400),
        ("events", "", 400),
        ("lag:", "", 400),
    ):
        refused = listening(filled, watch, token)
        assert refused.status == status, watch
        refused.close()
    assert filled.served.node.live.listeners == 0
    live = listening(filled, "events:orders%20lag", reader)
    live.until("event")
    filled.do(publish(filled, 1, "orders.us.1"))
    filled.do(publish(filled, 1, "orders.eu.1"))
    seen: list[Any] = []
    while not seen:
        seen = live.until("event")[1]["events"]
    assert [each["subject"] for each in seen] == ["orders.eu.1"]
    live.close()
    lags = listening(filled, "lag", reader)
    assert [each["group"] for each in lags.until("lag")[1]["groups"]] == [GROUP]
    lags.close()


def test_the_tail_of_a_listener_that_goes_ends(node: RunningNode) -> None:
    node.do(node.hr.create_stream("orders", ["orders.>"]))
    live = listening(node, "events:orders")
    live.until("event")
    tails = node.served.node.live._tasks
    assert len(tails) == 1
    live.close()
    wait_until(lambda: len(tails) == 0, "its task to end")
    assert node.served.node.live.listeners == 0
