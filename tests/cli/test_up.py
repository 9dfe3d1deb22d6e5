"""``headrace up`` and ``headrace serve`` as people type them: real processes, real signals."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace.sync
from headrace.catalog import schema
from headrace.log.open import open_log
from tests.support import ROOT, SOURCES, hearing_ctrl_c, wait_until


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A command that serves, and what it said first."""
    with hearing_ctrl_c():
        running = subprocess.Popen(
            [sys.executable, "-m", "headrace", *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": SOURCES},
        )
    assert running.stdout is not None
    try:
        line = running.stdout.readline()
        assert line, running.stderr.read() if running.stderr else ""
        yield running, json.loads(line)
    finally:
        running.kill()
        running.communicate()


@contextmanager
def given(place: str) -> Iterator[None]:
    """The catalog by the environment."""
    os.environ["HEADRACE_CATALOG"] = place
    try:
        yield
    finally:
        del os.environ["HEADRACE_CATALOG"]


def asked(address: str, path: str, token: str) -> tuple[int, Any]:
    made = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
    made.request("GET", path, headers={"authorization": f"Bearer {token}"})
    answer = made.getresponse()
    body = answer.read()
    made.close()
    return answer.status, json.loads(body) if body[:1] in b"{[" else body


def test_up_makes_a_catalog_serves_it_and_fills_work_queues_without_spark(tmp_path: Path) -> None:
    place = str(tmp_path / "data")
    words = ("--catalog", place, "up", "--port", "0", "--no-spark")
    with started(*words) as (running, said):
        token = (tmp_path / "data" / "node.token").read_text().strip()
        assert asked(said["address"], "/readyz", token) == (200, b"ready\n")
        with headrace.sync.open(place) as hr:
            hr.create_stream("orders", ["orders.>"])
            hr.groups.create_elastic(
                "orders", "billing", max_members=2, filter="orders.*", wildcards=[1], members=["m"]
            )
            hr.publish("orders.a", b"1")
            with hr.join("orders", "billing", member="m") as member:
                first = next(iter(member))
                assert first.value == b"1"
                first.ack()
        second = subprocess.run(
            [sys.executable, "-m", "headrace", *words],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": SOURCES},
            timeout=60,
        )
        assert second.returncode == 1
        assert said["address"] in second.stderr
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130


def said(*words: str) -> tuple[int, str]:
    """What a command that is refused says."""
    found = subprocess.run(
        [sys.executable, "-m", "headrace", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": SOURCES},
        timeout=60,
    )
    assert found.stdout == ""
    return found.returncode, found.stderr


@pytest.mark.parametrize("command", ["up", "serve"])
def test_what_cannot_be_served_is_said_before_anything_is_made(
    tmp_path: Path, command: str
) -> None:
    place, nothing = tmp_path / "data", tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, why = said("--catalog", str(place), command, "--port", str(port))
    assert (code, f"--port {port + 1}" in why) == (1, True)
    pair = ("--tls-cert", str(nothing), "--tls-key", str(nothing))
    for words, about in (
        (pair, "do not work"),
        (pair[:2], "go together"),
        (("--host", "0.0.0.0"), "--insecure"),
    ):
        code, why = said("--catalog", str(place), command, "--port", "0", *words)
        assert (code, about in why) == (2, True), why
    assert not place.exists()


def test_a_catalog_that_is_newer_is_not_served(tmp_path: Path) -> None:
    log = open_log(tmp_path / "data")
    log.catalog.write(lambda tx: schema.put_setting(tx, "schema_version", "999"))
    log.catalog.close()
    for command in ("up", "serve"):
        code, why = said("--catalog", str(tmp_path / "data"), command, "--port", "0")
        assert (code, "upgrade Headrace" in why) == (1, True)


def test_the_address_of_the_catalog_is_in_no_words_of_a_process(tmp_path: Path) -> None:
    """An address may hold a password, and everybody on the machine sees the words of a command."""
    place = str(tmp_path / "data")
    with given(place), started("up", "--port", "0") as (running, _):
        task = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        children = wait_until(lambda: task.read_text().split(), "the pipeline's process")
        wait_until(
            lambda: "pipeline" in Path(f"/proc/{children[0]}/cmdline").read_text(), "its words"
        )
        for pid in (running.pid, *children):
            assert place not in Path(f"/proc/{pid}/cmdline").read_text()


def test_serve_ends_on_a_signal_while_a_console_listens(tmp_path: Path) -> None:
    place = str(tmp_path / "data")
    with headrace.sync.open(place):
        pass
    with started("--catalog", place, "serve", "--port", "0") as (running, said):
        token = (tmp_path / "data" / "node.token").read_text().strip()
        live = http.client.HTTPConnection(said["address"].removeprefix("http://"), timeout=20)
        live.request("GET", "/api/v1/live", headers={"authorization": f"Bearer {token}"})
        answer = live.getresponse()
        assert answer.readline()
        began_s = time.monotonic()
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
        assert time.monotonic() - began_s < 10  # two seconds on a quiet machine
        assert b"event: bye" in answer.read()
        live.close()


def test_serve_says_how_to_get_another_link(tmp_path: Path) -> None:
    with headrace.sync.open(str(tmp_path / "d")):
        pass
    with hearing_ctrl_c():
        running = subprocess.Popen(
            [sys.executable, "-m", "headrace", "serve", "--port", "0", "--catalog",
             str(tmp_path / "d")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": SOURCES},
        )  # fmt: skip
    assert running.stdout is not None
    try:
        lines = [running.stdout.readline() for _ in range(3)]
    finally:
        running.kill()
        running.communicate()
    address = lines[0].split()[-1]
    assert f"headrace token link --node {address} " in lines[2]


def test_a_link_is_printed_by_whoever_may_read_the_catalog(tmp_path: Path) -> None:
    place = str(tmp_path / "data")
    with headrace.sync.open(place):
        pass
    with started("--catalog", place, "serve", "--port", "0") as (_, said):
        done = subprocess.run(
            [sys.executable, "-m", "headrace", "--catalog", place, "token", "link", "--node",
             said["address"]],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": SOURCES},
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{said['address']}/#code=")
