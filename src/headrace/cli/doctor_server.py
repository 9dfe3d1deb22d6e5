"""What ``headrace doctor`` looks at where several machines share a catalog."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from headrace.catalog import Catalog
from headrace.cli.checks import Check
from headrace.groups.shared import properties
from headrace.groups.shared.runtime import directory
from headrace.groups.shared.view import unreached

LEFT_MIN = 10
FAR_MS = 50.0
DIAL_S = 2.0
REACH = "give it an address that others reach: --listen, --advertise"


def check_server(catalog: Catalog) -> Iterator[Check]:
    """The database server of a shared catalog, and the programs that others have to dial."""
    yield from check_members(catalog)
    if not catalog.shared:
        return
    from headrace.catalog.postgres import PostgresCatalog
    from headrace.catalog.postgres_health import examine

    if not isinstance(catalog, PostgresCatalog):
        return
    health = examine(catalog)
    kind = "a standby, which can only be read" if health.standby else "takes writes"
    yield Check("server", "ok", f"PostgreSQL {health.version}, {kind}")
    if not health.fsync:
        yield Check("durability", "failed", "fsync = off", "switch fsync on, or lose events")
    elif health.synchronous_commit == "off":
        found = "synchronous_commit = off for this database; Headrace overrides it"
        yield Check("durability", "warning", found, "set it to on, for other programs")
    else:
        found = f"fsync = on, synchronous_commit = {health.synchronous_commit}"
        yield Check("durability", "ok", found)
    if health.pooled:
        found = "something stands between this program and the server, in session mode"
        yield Check("pooler", "ok", found)
    near = health.round_trip_ms < FAR_MS
    yield Check(
        "round trip",
        "ok" if near else "warning",
        f"{health.round_trip_ms:.2f} ms",
        "" if near else "bring programs and database closer together",
    )
    if not health.standby:
        if health.news_ms is None:
            mend = "is a pooler in transaction mode in between?"
            yield Check("news", "failed", "told, and never heard", mend)
        else:
            yield Check("news", "ok", f"heard after {health.news_ms:.1f} ms")
    few = health.connections_left < LEFT_MIN
    mend = "raise max_connections, or lower headrace_connections" if few else ""
    found = f"{health.connections_left} left"
    yield Check("connections", "warning" if few else "ok", found, mend)
    for turn in health.turns[-1:]:
        found = f"went back or changed its server ({turn.why}), seen by {turn.noticed_by}"
        yield Check("history", "warning", found, "see what was lost: docs/operations.md, fail-over")
    yield from check_peers(catalog)


def check_members(catalog: Catalog) -> Iterator[Check]:
    """Whether members of shared groups reach their leaders, as those have written it down."""
    for group, member in catalog.read(properties.unreached, snapshot=True):
        what = f"{group}: {unreached(member.session, member.unreached)}"
        yield Check("leader", "warning", what, REACH)


def check_peers(catalog: Catalog) -> Iterator[Check]:
    """Whether the programs of shared groups can be dialled from here."""
    for address in catalog.read(directory.registered):
        where = f"{address.peer} at {address.host}:{address.port}"
        try:
            socket.create_connection((address.host, address.port), DIAL_S).close()
        except OSError as error:
            mend = f"is it gone? else {REACH}"
            yield Check("peer", "warning", f"{where}: {error.strerror or error}", mend)
        else:
            yield Check("peer", "ok", f"{where}: can be dialled")
