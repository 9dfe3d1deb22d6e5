"""A node: one catalog, what is seen of it, and who may ask."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.api.client import Headrace
from headrace.catalog import entries
from headrace.errors import HeadraceError
from headrace.host import Host, Stage
from headrace.node.access import tokens
from headrace.node.access.gate import Gate
from headrace.node.access.sessions import Codes
from headrace.node.access.tokens import Keyring
from headrace.node.history import History
from headrace.node.live import Live
from headrace.node.metrics import NodeFacts, of_look, of_node
from headrace.node.observer import Observer
from headrace.node.problems import Problem
from headrace.node.regions import RegionsLook
from headrace.node.shapes import Look

READY_AGE_S = 30.0
HISTORY_S = 24 * 3600

_log = logging.getLogger(__name__)


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node serves."""

    host: str = "127.0.0.1"
    port: int = 8470
    read_only: bool = False
    metrics_per_unit: bool = False
    history_s: int = HISTORY_S
    no_auth: bool = False
    tls: bool = False
    allow_hosts: tuple[str, ...] = ()


class Node:
    """What the routes work on."""

    def __init__(self, hr: Headrace, settings: NodeSettings, gate: Gate) -> None:
        self.hr = hr
        self.settings = settings
        self.gate = gate
        self.codes = Codes(self.host.now_s)
        self.observer = Observer(
            self.host, History(), history_s=settings.history_s, stores=not settings.read_only
        )
        self.live = Live(hr, self.observer)
        self.regions = RegionsLook(hr)
        self._metrics: tuple[object, bytes] = (None, b"")
        self._metrics_of_look: tuple[Look | None, bytes] = (None, b"")
        self._stop: Callable[[], None] = lambda: None

    @property
    def host(self) -> Host:
        return self.hr.host

    async def start(self) -> None:
        """Read the tokens, and begin to look."""
        self.host.serve(Stage.READS, self)
        self._stop = await self.host.listen(entries.channel(tokens.BUCKET), self._tokens_changed)
        await self.load_tokens()
        await self.observer.start()

    async def close(self) -> None:
        """End live streams, and hear of no more news."""
        self.live.close()
        self._stop()

    def _tokens_changed(self) -> None:
        self.host.spawn(self.load_tokens())

    async def load_tokens(self) -> None:
        """The tokens as they are now."""
        try:
            found = await self.host.in_thread(tokens.read_all, self.hr.log.catalog)
        except HeadraceError as error:
            _log.warning("tokens were not read: %s", error)
            return
        self.gate.keyring.load(found)

    # -- what routes ask for ------------------------------------------------------------

    async def look(self) -> Look:
        """The last look; raises while there is none."""
        found = await self.observer.fresh()
        if found is None:
            away = self.observer.away or "it was not read yet"
            raise Problem(503, "CatalogAway", f"the catalog cannot be read: {away}")
        return found

    @property
    def is_ready(self) -> bool:
        return self.observer.away is None and self.observer.age_s < READY_AGE_S

    def metrics(self) -> bytes:
        """The text for Prometheus, made once for each look."""
        from headrace import __version__

        observer = self.observer
        number = 0 if observer.look is None else observer.look.number
        key = (number, observer.away is None, int(observer.age_s) // 10)
        if self._metrics[0] != key:
            facts = NodeFacts(
                version=__version__,
                look_age_s=observer.age_s,
                away=observer.away is not None,
                listeners=self.live.listeners,
                per_unit=self.settings.metrics_per_unit,
            )
            self._metrics = key, of_node(facts) + self._metrics_seen()
        return self._metrics[1]

    def _metrics_seen(self) -> bytes:
        """The part that is the same until the next look."""
        observer, (look, text) = self.observer, self._metrics_of_look
        if observer.look is not None and observer.look is not look:
            per_unit = self.settings.metrics_per_unit
            text = of_look(observer.look, observer.history, observer.decided, per_unit=per_unit)
            self._metrics_of_look = observer.look, text
        return text


def gate_of(settings: NodeSettings, folder: Path | None) -> tuple[Gate, str]:
    """The gate of a node, and the node's own token."""
    own = tokens.own_token(folder) or tokens.new_secret()
    scheme = "https" if settings.tls else "http"
    names = [settings.host if ":" not in settings.host else f"[{settings.host}]"]
    if is_loopback(settings.host):
        names += ["localhost", "127.0.0.1", "[::1]"]
    names += settings.allow_hosts
    usual = 443 if settings.tls else 80
    hosts = {
        each.lower() if _has_port(each) else f"{each.lower()}:{settings.port}" for each in names
    }
    hosts |= {each.lower() for each in names if settings.port == usual}
    hosts |= {each.lower() for each in settings.allow_hosts}
    return (
        Gate(
            keyring=Keyring(own),
            hosts=frozenset(hosts),
            origins=frozenset(
                {f"{scheme}://{each}" for each in hosts}
                | {f"https://{each.lower()}" for each in settings.allow_hosts}
            ),
            cookie=f"__Host-headrace_{settings.port}"
            if settings.tls
            else f"headrace_{settings.port}",
            secure=settings.tls,
            open=settings.no_auth,
            now_s=time.time,
        ),
        own,
    )


def _has_port(name: str) -> bool:
    return name.rpartition(":")[2].isdigit() and not name.endswith("]")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    return host in ("localhost", "::1") or host.startswith("127.")
