"""Who gets in, and who does not: tokens, codes, cookies, hosts, origins, roles, scopes."""

from __future__ import annotations

import http.client
import logging
import socket
import stat
from pathlib import Path

import pytest

from headrace.node.access import tokens
from headrace.node.access.tokens import new_secret
from tests.node.support import LiveClient, RunningNode, running
from tests.support import wait_until


def made(node: RunningNode, name: str, *roles: str, subjects: tuple[str, ...] = ()) -> str:
    found = node.post("/tokens", {"token": name, "roles": roles, "subjects": subjects})
    return str(found["secret"])


def test_nothing_is_told_without_a_token(shared_node: RunningNode) -> None:
    for path in ("/api/v1/overview", "/api/v1/live", "/metrics", "/api/v1/openapi.json"):
        found = shared_node.ask("GET", path, token=None)
        assert (found.status, found.json()["title"]) == (401, "TokenMissing")
        assert found.headers["content-type"] == "application/problem+json"


def test_wrong_tokens_are_refused_and_slowed_down(node: RunningNode) -> None:
    for wrong in (new_secret(), node.token[:-1], "x", ""):
        found = node.ask("GET", "/api/v1/me", headers={"authorization": f"Bearer {wrong}"})
        assert found.status == 401
        assert wrong == "" or wrong not in found.body.decode()
    for _ in range(20):
        last = node.ask("GET", "/api/v1/me", token=new_secret())
    assert (last.status, last.json()["title"]) == (429, "TooManyTries")
    assert int(last.headers["retry-after"]) >= 1
    # Others at this address lock nobody out who has a good token.
    assert node.ask("GET", "/api/v1/me").status == 200
    code = node.post("/link", {})["path"].partition("=")[2]
    for given, status in (({"code": "x"}, 429), ({"code": code}, 204)):
        assert node.ask("POST", "/api/v1/login", given, token=None).status == status


def test_a_token_in_the_address_is_refused(shared_node: RunningNode) -> None:
    found = shared_node.ask("GET", f"/api/v1/me?token={shared_node.token}")
    assert found.json()["title"] == "SecretInAddress"


def test_an_expired_token_is_no_good(node: RunningNode) -> None:
    found = tokens.create(node.hr.log.catalog, "brief", ("view",), (), 1)
    node.do(node.served.node.load_tokens())
    assert node.ask("GET", "/api/v1/me", token=found.secret).status == 200
    node.served.node.gate.now_s = lambda: 4_000_000_000.0
    assert node.ask("GET", "/api/v1/me", token=found.secret).status == 401


def test_a_token_that_is_removed_ends_at_once(node: RunningNode) -> None:
    secret = made(node, "guest", "view")
    assert node.ask("GET", "/api/v1/me", token=secret).json()["token"] == "guest"
    assert node.ask("DELETE", "/api/v1/tokens/guest").status == 200
    assert node.ask("GET", "/api/v1/me", token=secret).status == 401


def test_a_token_of_the_command_line_is_heard_of(node: RunningNode) -> None:
    found = tokens.create(node.hr.log.catalog, "cli", ("read",))
    wait_until(
        lambda: node.ask("GET", "/api/v1/me", token=found.secret).status == 200, "the new token"
    )


def test_a_code_lets_a_browser_in_once(shared_node: RunningNode) -> None:
    code = shared_node.post("/link", {})["path"].partition("=")[2]
    first = shared_node.ask("POST", "/api/v1/login", {"code": code}, token=None)
    cookie = first.headers["set-cookie"]
    assert first.status == 204
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    again = shared_node.ask("POST", "/api/v1/login", {"code": code}, token=None)
    assert again.status == 401
    sent = {"cookie": cookie.partition(";")[0]}
    assert shared_node.ask("GET", "/api/v1/me", token=None, headers=sent).status == 200
    name = {"stream": "by-cookie", "subjects": ["by-cookie.>"]}
    bare = shared_node.ask("POST", "/api/v1/streams", name, token=None, headers=sent)
    assert (bare.status, bare.json()["title"]) == (403, "HeaderMissing")
    full = {**sent, "x-headrace": "1", "sec-fetch-site": "same-origin"}
    assert shared_node.ask("POST", "/api/v1/streams", name, token=None, headers=full).status == 200
    cut = {"cookie": sent["cookie"][:-3]}
    assert shared_node.ask("GET", "/api/v1/me", token=None, headers=cut).status == 401


def test_a_wrong_host_and_a_foreign_origin_are_refused(shared_node: RunningNode) -> None:
    found = shared_node.ask("GET", "/healthz", headers={"host": "evil.example"})
    assert found.json()["title"] == "WrongHost"
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        for method, path in (("GET", "/api/v1/live"), ("POST", "/api/v1/streams")):
            body = None if method == "GET" else {"stream": "x", "subjects": ["x.>"]}
            found = shared_node.ask(method, path, body, headers=headers)
            assert (found.status, found.json()["title"]) == (403, "ForeignOrigin")


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("view", "GET /api/v1/overview", "GET /api/v1/streams/orders/events"),
        ("read", "GET /api/v1/streams/orders/events", "POST /api/v1/publish"),
        ("publish", "POST /api/v1/publish", "GET /api/v1/streams/orders/events"),
        ("consume", "GET /api/v1/overview", "POST /api/v1/streams"),
    ],
)
def test_roles_allow_what_they_say(
    shared_node: RunningNode, role: str, may: str, may_not: str
) -> None:
    node = shared_node
    node.do(node.hr.create_stream("orders", ["orders.>"]))
    wait_until(lambda: node.get("/search?q=orders"), "the stream")
    secret = made(node, f"role-{role}", role)
    bodies = {"POST /api/v1/publish": {"subject": "orders.a", "value": "1"}}
    for text, status in ((may, 200), (may_not, 403)):
        method, path = text.split()
        body = bodies.get(text, {"stream": "x", "subjects": ["x.>"]} if method == "POST" else None)
        found = node.ask(method, path, body, token=secret)
        assert found.status == status, found.body


def test_a_scope_hides_everything_else(node: RunningNode) -> None:
    async def fill() -> None:
        hr = node.hr
        await hr.create_stream("orders", ["orders.>"])
        await hr.create_stream("secret", ["secret.>"])
        await hr.shared_groups.declare("audit", "orders.>", start="earliest")
        await hr.shared_groups.declare("spy", "secret.>", start="earliest")
        await hr.publish("orders.eu.1", b"open", key="k")
        await hr.publish("orders.us.1", b"hidden", key="k")
        await hr.publish("secret.1", b"hidden", key="k")

    node.do(fill())
    wait_until(lambda: node.get("/overview")["groups_count"] == 2, "the groups")
    secret = made(node, "eu", "read", subjects=("orders.eu.>",))
    seen = node.get("/overview", token=secret)
    assert [each["stream"] for each in seen["streams"]] == ["orders"]
    assert [each["group"] for each in seen["groups"]] == ["$share/audit/orders.>"]
    for path in (
        "/streams/secret",
        "/groups/%24share%2Fspy%2Fsecret.%3E",
        "/keys?key=k&stream=secret",
    ):
        hidden = node.ask("GET", f"/api/v1{path}", token=secret)
        absent = node.ask("GET", f"/api/v1{path.replace('secret', 'nothing')}", token=secret)
        assert (hidden.status, absent.status) == (404, 404)
    events = wait_until(
        lambda: node.get("/streams/orders/events?start=earliest", token=secret)["events"], "events"
    )
    assert [each["value"] for each in events] == ["open"]
    found = node.get("/keys?key=k", token=secret)["found"]
    assert {each["subject"] for each in found["events"]} == {"orders.eu.1"}
    assert node.ask("GET", "/metrics", token=secret).status == 404
    live = LiveClient(node, "/api/v1/live", {"authorization": f"Bearer {secret}"})
    _, state = live.until("state")
    assert [each["stream"] for each in state["streams"]] == ["orders"]
    live.close()


def test_every_change_is_written_down_and_no_payload_is(node: RunningNode) -> None:
    node.post("/streams", {"stream": "orders", "subjects": ["orders.>"]})
    node.post("/publish", {"subject": "orders.a", "value": "a-payload"})
    refused = node.ask("POST", "/api/v1/streams", {"stream": "or ders", "subjects": ["x.>"]})
    assert refused.status == 400
    found = node.get("/audit")
    assert [(each["path"], each["status"]) for each in found] == [
        ("/api/v1/streams", 400),
        ("/api/v1/publish", 200),
        ("/api/v1/streams", 200),
    ]
    assert all(each["token"] == "node" and each["address"] == "127.0.0.1" for each in found)
    assert "a-payload" not in str(found)


def test_a_node_that_only_reads_has_no_route_that_changes(tmp_path: Path) -> None:
    with running(str(tmp_path / "catalog"), read_only=True) as node:
        assert node.get("/me")["read_only"]
        for method, path in (("POST", "/streams"), ("DELETE", "/groups/x"), ("POST", "/tokens")):
            assert node.ask(method, f"/api/v1{path}", {}).status in (404, 405)
        methods = {m for each in node.get("/openapi.json")["paths"].values() for m in each}
        assert methods == {"get", "post"}


def test_the_nodes_own_token_is_for_its_owner_alone(node: RunningNode, tmp_path: Path) -> None:
    file = tmp_path / "catalog" / "node.token"
    assert file.read_text().strip() == node.token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_no_secret_and_no_payload_is_logged_measured_or_said(
    node: RunningNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    node.post("/streams", {"stream": "orders", "subjects": ["orders.>"]})
    node.post("/publish", {"subject": "orders.a", "value": "a-payload", "key": "k"})
    secret = made(node, "guest", "read")
    code = node.post("/link", {})["path"].partition("=")[2]
    login = node.ask("POST", "/api/v1/login", {"code": code}, token=None)
    cookie = login.headers["set-cookie"].partition(";")[0].partition("=")[2]
    wrong = b'{"subject": 1, "value": "a-payload"}'
    said = [
        node.ask("GET", "/metrics").body.decode(),
        node.ask("GET", f"/api/v1/{secret}").body.decode(),
        node.ask("GET", f"/api/v1/me?code={code}").body.decode(),
        node.ask("POST", "/api/v1/publish", raw=wrong).body.decode(),
        str(node.get("/tokens")),
        str(node.get("/audit")),
        caplog.text,
    ]
    for text in said:
        for hidden in (secret, node.token, code, cookie, "a-payload"):
            assert hidden not in text


def test_live_streams_end_with_the_node_and_so_do_listeners_that_do_not_read(
    tmp_path: Path,
) -> None:
    import time

    node = RunningNode(str(tmp_path / "catalog"))
    node.start()
    lives = [LiveClient(node, "/api/v1/live") for _ in range(10)]
    for live in lives:
        live.until("state")
    deaf = []
    for _ in range(40):
        made = socket.create_connection(("127.0.0.1", node.port))
        made.sendall(
            b"GET /api/v1/live HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nauthorization: Bearer %s\r\n\r\n"
            % (node.port, node.token.encode())
        )
        deaf.append(made)
    wait_until(lambda: node.served.node.live.listeners == 50, "all of them")
    began_s = time.monotonic()
    node.do(node.served.stop())
    took_s = time.monotonic() - began_s
    node.stop()
    assert lives[0].until("bye")[1] == {"reason": "the node ends"}
    assert took_s < 5, took_s  # two seconds on a quiet machine
    for live in lives:
        live.close()
    for made in deaf:
        made.close()


def test_listeners_that_come_all_at_once_are_limited(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.node.live.LISTENERS_MAX", 3)
    made = [http.client.HTTPConnection("127.0.0.1", node.port, timeout=30) for _ in range(40)]
    for each in made:
        each.connect()
    for each in made:
        each.request("GET", "/api/v1/live", headers={"authorization": f"Bearer {node.token}"})
    answers = [each.getresponse() for each in made]
    told = [answer.readline() for answer in answers if answer.status == 200]
    assert sum(line.startswith(b"retry") for line in told) == 3
    assert sum(line == b"event: bye\n" for line in told) == len(told) - 3
    assert {answer.status for answer in answers} <= {200, 503}
    for each in made:
        each.close()


def test_listeners_are_limited(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.node.live.LISTENERS_MAX", 1)
    first = LiveClient(node, "/api/v1/live")
    first.until("state")
    second = LiveClient(node, "/api/v1/live")
    assert second.status == 503
    first.close()
    second.close()
