"""How a program takes part in shared groups, and at which address others reach it.

A program on a catalog that other machines share must not register a loopback address: the others
would dial themselves.  So without a choice it takes the address by which it reaches the catalog's
server, and if that is this very machine, the one that it has towards other networks.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import NamedTuple

import msgspec

from headrace.catalog import Catalog
from headrace.errors import InvalidInputError
from headrace.groups.shared.core.settings import BorrowerSettings, LeaderSettings
from headrace.subjects.arguments import check_fields

LISTEN_VARIABLE = "HEADRACE_LISTEN"
ADVERTISE_VARIABLE = "HEADRACE_ADVERTISE"
LOOPBACK = "127.0.0.1"
_WILDCARDS = ("0.0.0.0", "::")
_ELSEWHERE = ("192.0.2.1", 9)
"""An address that is nobody's: asking for the way there sends nothing."""


class Reached(NamedTuple):
    """Where a program listens, and what others dial."""

    listen: str
    dialled: str


class SharedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How this process takes part in shared groups."""

    host: str | None = None
    """The address to listen on, else ``HEADRACE_LISTEN``, else one that others can reach: loopback
    where the catalog is a folder, else the address by which this machine reaches the catalog."""
    port: int = 0
    """0: any that is free."""
    advertise: str | None = None
    """What others dial, if it is not `host`; else ``HEADRACE_ADVERTISE``."""
    borrower: BorrowerSettings = BorrowerSettings()
    leader: LeaderSettings = LeaderSettings()
    """Of groups that appear with their first subscriber; others keep what they were made with."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.port < 65_536:
            raise InvalidInputError(f"SharedOptions.port is {self.port}; it has to be 0 to 65535")

    def known(self, url: str) -> str | None:
        """What others dial, if that is known before the catalog at ``url`` is opened."""
        advertised = self.advertise or os.environ.get(ADVERTISE_VARIABLE)
        listen = self.host or os.environ.get(LISTEN_VARIABLE)
        if advertised or (listen is not None and listen not in _WILDCARDS):
            return advertised or listen
        return None if url.startswith(("postgres://", "postgresql://")) else LOOPBACK

    def resolved(self, catalog: Catalog) -> Reached:
        """The addresses on this catalog; may ask its server, so call it on a thread."""
        listen = self.host or os.environ.get(LISTEN_VARIABLE)
        advertised = self.advertise or os.environ.get(ADVERTISE_VARIABLE)
        own = LOOPBACK
        if catalog.shared and (listen is None or listen in _WILDCARDS) and not advertised:
            own = own_address(catalog)
        if listen is None:
            # An address that only others know cannot be listened on.
            listen = "0.0.0.0" if advertised and catalog.shared else own
        return Reached(listen, advertised or (own if listen in _WILDCARDS else listen))


def own_address(catalog: Catalog) -> str:
    """The address of this machine that others on the catalog are most likely to reach."""
    found = catalog.own_address()
    if found is not None and not ipaddress.ip_address(found).is_loopback:
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(_ELSEWHERE)
        except OSError:
            return LOOPBACK  # there is no other network
        return str(way.getsockname()[0])
