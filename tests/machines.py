"""Machines on one network: namespaces behind a bridge, each of which can be cut off and healed.

A machine that is cut off has its cable in nobody's socket: nothing is refused, packets go nowhere.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator

from tests.postgres_server import PostgresMachine, postgres_machine


def ip(*arguments: str) -> None:
    """Run `ip` of iproute2."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def allowed() -> bool:
    """Whether this system lets tests make networks."""
    if os.geteuid() or shutil.which("ip") is None:
        return False
    name = f"hr{secrets.token_hex(3)}"
    try:
        ip("link", "add", name, "type", "bridge")
        ip("link", "del", name)
        ip("netns", "add", name)
        ip("netns", "del", name)
    except subprocess.CalledProcessError:
        return False
    return True


class Network:
    """A bridge with an address of its own, and the machines on it."""

    def __init__(self) -> None:
        self._name = f"hr{secrets.token_hex(3)}"
        part = f"10.{100 + secrets.randbelow(100)}.{secrets.randbelow(250)}"
        self.address = f"{part}.1"
        """The address of this very machine, where a server may listen."""
        self.addresses = f"{part}.0/24"
        self._machines: list[str] = []
        ip("link", "add", self._name, "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", self._name)
        ip("link", "set", self._name, "up")

    def machine(self) -> str:
        """Add a machine; returns its name."""
        number = len(self._machines) + 2
        name, port = f"{self._name}n{number}", f"{self._name}p{number}"
        ip("netns", "add", name)
        self._machines.append(name)
        ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", port, "master", self._name, "up")
        own = self.address.removesuffix("1") + str(number)
        ip("-n", name, "addr", "add", f"{own}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "eth0", "up")
        return name

    def _port(self, machine: str) -> str:
        return f"{self._name}p{machine.rpartition('n')[2]}"

    def cut(self, machine: str) -> None:
        """Nothing reaches it any more, and nothing of it anybody."""
        ip("link", "set", self._port(machine), "nomaster")

    def heal(self, machine: str) -> None:
        ip("link", "set", self._port(machine), "master", self._name)

    def remove(self) -> None:
        for name in self._machines:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "del", self._name)


def on(machine: str, *command: str) -> list[str]:
    """A command as it is run on a machine."""
    return ["ip", "netns", "exec", machine, *command]


@contextlib.contextmanager
def server_on(net: Network) -> Iterator[tuple[PostgresMachine, str]]:
    """A server on this very machine, and the address by which those of the network reach it."""
    with postgres_machine(listen_addresses=f"'127.0.0.1,{net.address}'") as server:
        with (server.data / "pg_hba.conf").open("a") as trusted:
            trusted.write(f"host all all {net.addresses} trust\n")
        server.execute("SELECT pg_reload_conf()")
        yield server, f"postgresql://postgres@{net.address}:{server.port}/postgres"


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network that goes with the block."""
    made = Network()
    try:
        yield made
    finally:
        made.remove()
