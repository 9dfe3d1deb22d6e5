"""What makes no sense is refused in a sentence, and changes nothing."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings

from headrace.errors import InvalidInputError, ListenError, TLSError
from headrace.log.limits import EVENT_BYTES_MAX
from headrace.node.accepting import CONNECTIONS_MAX, listen
from headrace.node.node import NodeSettings
from headrace.node.routes import PREFIX, table
from headrace.node.serving import check
from tests.node.fuzz import OddRequest, requests
from tests.node.fuzz import check as check_request
from tests.node.support import RunningNode
from tests.support import wait_until


@pytest.fixture(scope="module")
def filled(shared_node: RunningNode) -> RunningNode:
    node = shared_node

    async def fill() -> None:
        await node.hr.create_stream("orders", ["orders.>"], segments=2)
        await node.hr.shared_groups.declare("audit", "orders.>", start="earliest")
        await node.hr.publish("orders.a", b'{"a": 1}', key="k")

    node.do(fill())
    wait_until(lambda: node.get("/overview")["groups_count"] == 1, "the group")
    return node


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("PUT", "/streams", {}, 405),
        ("GET", "/streams/absent", None, 404),
        ("GET", "/groups/absent", None, 404),
        ("GET", "/groups?limit=-1", None, 400),
        ("GET", "/groups?limit=1000000000", None, 400),
        ("GET", "/groups?what=else", None, 400),
        ("GET", "/groups?limit=5&limit=6", None, 400),
        ("GET", "/streams/orders/events?start=yesterday", None, 400),
        ("GET", "/streams/orders/events?start=2026-01-01T00:00:00", None, 400),
        ("GET", "/streams/orders/events?where=nonsense", None, 400),
        ("GET", "/streams/orders/events?segments=a", None, 400),
        ("GET", "/streams/orders/events?start=99:1", None, 404),
        ("GET", "/streams/orders/event?segment=0&offset=99", None, 400),
        ("GET", "/live?watch=everything", None, 400),
        ("GET", "/keys?key=", None, 400),
        ("GET", "/groups/%24share%2Faudit%2Forders.%3E/past?at=now", None, 400),
        ("GET", "/%ff", None, 400),
        ("POST", "/streams", {"stream": "a b", "subjects": ["x.>"]}, 400),
        ("POST", "/streams", {"stream": "x", "subjects": ["x..y"]}, 400),
        ("POST", "/streams", {"stream": "x"}, 400),
        ("POST", "/streams", {"stream": "x", "subjects": ["x.>"], "more": 1}, 400),
        ("POST", "/streams", {"stream": "x", "subjects": "x.>"}, 400),
        ("POST", "/streams/orders/trim", {"before": "2999-01-01T00:00:00Z"}, 400),
        ("PATCH", "/streams/orders", {"revision": "moved", "retention": {"type": "limits"}}, 409),
        ("DELETE", "/streams/orders", {"name": "order"}, 400),
        ("POST", "/streams/orders/scale", {"segments": [77], "into": 2}, 404),
        ("POST", "/groups", {"kind": "odd", "group": "x"}, 400),
        ("POST", "/groups/%24share%2Faudit%2Forders.%3E/seek", {"to": "there"}, 400),
        ("POST", "/tokens", {"token": "x", "roles": ["king"]}, 400),
        ("POST", "/tokens", {"token": "x y", "roles": ["view"]}, 400),
        ("DELETE", "/tokens/absent", None, 404),
        ("DELETE", "/sessions/absent", {"name": "absent"}, 404),
    ],
)
def test_refused_in_a_sentence(
    filled: RunningNode, method: str, path: str, body: Any, status: int
) -> None:
    before = filled.get("/streams/orders")["config"], filled.get("/tokens")
    found = filled.ask(method, f"/api/v1{path}", body)
    assert found.status == status, found.body
    problem = found.json()
    assert problem["status"] == status
    assert len(problem["detail"]) > 10
    assert (filled.get("/streams/orders")["config"], filled.get("/tokens")) == before


def test_bodies_that_are_too_large_too_deep_or_no_text_are_refused(filled: RunningNode) -> None:
    for raw, status in (
        (b'{"stream": "' + b"x" * 10_000_000 + b'"}', 413),
        (b"[" * 10_000 + b"]" * 10_000, 400),
        (b'{"stream": "\xff\xfe"}', 400),
        (b"{", 400),
    ):
        found = filled.ask("POST", "/api/v1/streams", raw=raw)
        assert found.status == status, found.body
        assert len(found.json()["detail"]) > 10


ODD_TEXTS = ["<script>alert(1)</script>", "\u202eevil", "a\u0000b", "é" * 3000]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_subjects_headers_and_names_are_told_as_they_are_or_refused(
    filled: RunningNode, text: str
) -> None:
    short = text[:200]
    for path, body in (
        ("/streams", {"stream": short, "subjects": ["x.>"]}),
        ("/groups", {"kind": "static", "stream": "orders", "group": short, "max_members": 1}),
        ("/groups", {"kind": "reader", "group": short, "streams": ["orders"]}),
        ("/tokens", {"token": short, "roles": ["view"]}),
    ):
        found = filled.ask("POST", f"/api/v1{path}", body)
        assert found.status in (200, 400), found.body
        if found.status == 200:
            where = f"{path}/{quote(short, safe='')}"
            assert filled.ask("DELETE", f"/api/v1{where}", {"name": short}).status == 200
    subject = "orders." + short
    publish = filled.hr.publish(subject, b"x", headers={"h": short.encode()})
    if "\0" in short:  # subjects hold none
        with pytest.raises(InvalidInputError, match="subject"):
            filled.do(publish)
        return
    filled.do(publish)
    found = filled.get(f"/streams/orders/events?start=earliest&limit=1000&subject={quote(subject)}")
    assert [(e["subject"], e["headers"]) for e in found["events"]] == [(subject, [["h", short]])]


def test_a_line_of_8_mib_is_cut_where_it_is_shown(filled: RunningNode) -> None:
    line = b'{"line": "' + b"x" * (EVENT_BYTES_MAX - 12) + b'"}'
    filled.do(filled.hr.publish("orders.long", line, headers={"long": line[:60_000]}))
    listed = filled.ask("GET", "/api/v1/streams/orders/events?subject=orders.long&start=earliest")
    (event,) = listed.json()["events"]
    assert (event["size_bytes"], event["cut"]) == (len(line), True)
    assert len(listed.body) < 128 * 1024
    place = f"segment={event['segment']}&offset={event['offset']}"
    alone = filled.ask("GET", f"/api/v1/streams/orders/event?{place}")
    assert alone.json()["cut"]
    assert len(alone.body) < 2 * 1024 * 1024


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_keys_and_values_come_back_as_they_are(filled: RunningNode, text: str) -> None:
    key = text.replace("\u0000", "0")[:200]
    filled.post("/publish", {"subject": "orders.odd", "value": text, "key": key})
    found = wait_until(
        lambda: [
            each
            for each in filled.get("/streams/orders/events?start=earliest&limit=1000")["events"]
            if each["key"] == key
        ],
        "the event",
    )
    assert found[0]["value"] == (text if "\0" not in text else text.encode().hex(" ", 4))


def test_a_slow_sender_is_cut(filled: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.node.serving.SLOW_S", 0.5)
    made = socket.create_connection(("127.0.0.1", filled.port))
    made.settimeout(20)
    made.sendall(b"GET /healthz HT")
    began_s = time.monotonic()
    assert made.recv(10) == b""
    assert time.monotonic() - began_s < 15
    made.close()


def test_too_many_connections_are_refused_and_what_is_left_goes_on(node: RunningNode) -> None:
    listening = node.served.listening
    assert 1 <= listening.most <= CONNECTIONS_MAX
    listening.most = 20
    many = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(200)]
    refused = node.ask("GET", "/api/v1/me")
    assert (refused.status, refused.json()["title"]) == (503, "TooManyConnections")
    assert len(refused.json()["detail"]) > 10
    for each in many:
        each.close()
    wait_until(lambda: answers(node), "an answer")


def answers(node: RunningNode) -> bool:
    try:
        return node.ask("GET", "/api/v1/me").status == 200
    except OSError:  # cut before the question was read
        return False


def test_what_is_not_for_others_is_not_served_to_them() -> None:
    for wrong, insecure in (
        (NodeSettings(host="0.0.0.0"), False),
        (NodeSettings(host="0.0.0.0", no_auth=True), True),
        (NodeSettings(port=70_000), False),
    ):
        with pytest.raises(InvalidInputError):
            check(wrong, insecure=insecure)
    check(NodeSettings(host="0.0.0.0"), insecure=True)
    check(NodeSettings(host="0.0.0.0", tls=True), insecure=False)


def test_a_port_in_use_and_a_wrong_certificate_are_said(node: RunningNode, tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="--port"):
        listen("127.0.0.1", node.port)
    from headrace.node.serving import Served

    (tmp_path / "cert.pem").write_text("nonsense")

    async def serve() -> None:
        Served(
            node.hr,
            NodeSettings(port=0, tls=True),
            folder=None,
            tls_cert=str(tmp_path / "cert.pem"),
            tls_key=str(tmp_path / "cert.pem"),
        )

    with pytest.raises(TLSError):
        node.do(serve())


def test_no_route_is_without_a_role_and_every_one_is_in_the_document(filled: RunningNode) -> None:
    document = filled.get("/openapi.json")
    for route in table(read_only=False):
        assert route.role
        found = document["paths"][PREFIX + route.path][route.method.lower()]
        assert found["x-role"] == route.role
        assert not (route.method == "GET" and route.changes)


@given(requests(dry=True))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_the_node_fail(filled: RunningNode, sent: OddRequest) -> None:
    check_request(filled, sent)
