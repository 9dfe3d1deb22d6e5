"""The servers of the peers: on loopback, in temporary folders, ended by their process id."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 10.0


class ServerFailed(Exception):
    """A server did not come up; its own words are in the message."""


def nats_program() -> str | None:
    """The server that comes with the Python package, else the machine's own."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


def redis_program() -> str | None:
    """The machine's own, if it has one."""
    return shutil.which("redis-server")


@contextmanager
def nats_cluster(program: str, folder: Path, *, sync_always: bool) -> Iterator[str]:
    """Three servers of JetStream that keep each other's copies; yields the address of one."""
    with ExitStack() as stack:
        ports = [stack.enter_context(_free_port()) for _ in range(3)]
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
        stack.close()  # the servers take the ports
        urls = [
            stack.enter_context(
                nats_server(
                    program,
                    folder / str(port),
                    sync_always=sync_always,
                    more=f"server_name: n{port}\ncluster {{ name: peers, "
                    f"listen: 127.0.0.1:{port}, routes: [{routes}] }}\n",
                )
            )
            for port in ports
        ]
        yield urls[0]


@contextmanager
def _free_port() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield int(free.getsockname()[1])


@contextmanager
def nats_server(program: str, folder: Path, *, sync_always: bool, more: str = "") -> Iterator[str]:
    """JetStream on files; yields its address."""
    folder.mkdir(parents=True)
    sync = "\n  sync_interval: always" if sync_always else ""
    config = folder / "nats.conf"
    config.write_text(
        "host: 127.0.0.1\nport: -1\n"
        f'ports_file_dir: "{folder}"\n'
        f'jetstream {{\n  store_dir: "{folder / "data"}"\n  max_file_store: 8GB{sync}\n}}\n{more}'
    )
    with _running([program, "-c", str(config)], folder) as process:

        def address() -> str | None:
            for path in folder.glob("*.ports"):
                text = path.read_text()
                if text.endswith("}"):
                    found: str = json.loads(text)["nats"][0]
                    return found
            return None

        url = _until(address, process, folder)
        yield url


@contextmanager
def redis_server(program: str, folder: Path, *, appendfsync: str) -> Iterator[int]:
    """Streams on an append-only file; yields its port."""
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "yes", "--appendfsync", appendfsync]
    with _running(command, folder) as process:

        def answers() -> int | None:
            try:
                with socket.create_connection(("127.0.0.1", port), 1.0) as link:
                    link.sendall(b"PING\r\n")
                    return port if link.recv(64).startswith(b"+PONG") else None
            except OSError:
                return None

        yield _until(answers, process, folder)


@contextmanager
def _running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "server.out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(look: Callable[[], T | None], process: subprocess.Popen[bytes], folder: Path) -> T:
    deadline = time.monotonic() + START_TIMEOUT_S
    while (found := look()) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            said = (folder / "server.out").read_text(errors="replace").strip().splitlines()
            last = said[-1] if said else "without a word"
            raise ServerFailed(f"{process.args!r} did not come up: {last}")
        time.sleep(0.01)
    return found
