"""What an address of a PostgreSQL catalog says beside where the server is.

Settings of Headrace stand in the address, so that they reach every program, command and Spark
executor that is given it: ``postgresql://db/app?headrace_schema=billing``.  They are taken out of
the address before the driver sees it; what is left is libpq's (``sslmode``, several hosts, …).
"""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from headrace.errors import CatalogError

PREFIX = "headrace_"
FSYNC_VARIABLE = "HEADRACE_POSTGRES_FSYNC"
"""``off`` in the environment allows servers that do not sync, as ``headrace_fsync=off`` does."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a PostgreSQL catalog; each may stand in the address as ``headrace_…``."""

    schema: str = "headrace"
    """The schema that holds the catalog's tables."""
    connections: int = 4
    """The most connections of one program, the one that hears news among them."""
    lock_timeout_s: float = 15.0
    """How long a write waits for somebody else's, until it fails and names him."""
    idle_timeout_s: float = 4.0
    """How long a program may say nothing in the middle of a transaction; then the server undoes
    it, so that one that is frozen or cut off holds up nobody for longer."""
    dead_after_s: float = 5.0
    """After how long without an answer to its packets the other side counts as gone."""
    call_timeout_s: float = 60.0
    """The most that one statement may take."""
    reconnect_s: float = 15.0
    """How long a write waits for a server that is away, or that takes no more connections."""
    fsync: str = "on"
    """``off`` allows a server that does not sync to disk: what is published may be lost."""

    @property
    def allows_fsync_off(self) -> bool:
        return self.fsync == "off" or os.environ.get(FSYNC_VARIABLE) == "off"


# Used here, since the first use of a type by msgspec is not safe in several threads at once.
msgspec.convert({}, PostgresOptions)


def split(url: str) -> tuple[str, PostgresOptions]:
    """The address for the driver, and what it says to Headrace."""
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return url, PostgresOptions()  # the driver says what is wrong with it
    own = {key.removeprefix(PREFIX): value for key, value in given if key.startswith(PREFIX)}
    if not own:
        return url, PostgresOptions()
    rest = [(key, value) for key, value in given if not key.startswith(PREFIX)]
    return urlunsplit(parts._replace(query=urlencode(rest))), _checked(own)


def _checked(own: dict[str, str]) -> PostgresOptions:
    try:
        options = msgspec.convert(own, PostgresOptions, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(PREFIX + name for name in PostgresOptions.__struct_fields__)
        raise CatalogError(f"the catalog's address: {error}; known are {known}") from None
    if not _SCHEMA.fullmatch(options.schema):
        raise CatalogError(
            f"{PREFIX}schema={options.schema!r}: use small letters, digits and underscores"
        )
    if options.connections < 2:
        raise CatalogError(f"{PREFIX}connections={options.connections}: two are the least")
    if options.fsync not in ("on", "off"):
        raise CatalogError(f"{PREFIX}fsync={options.fsync!r}: write on or off")
    for name in ("lock_timeout_s", "idle_timeout_s", "dead_after_s", "call_timeout_s"):
        if getattr(options, name) < 0.1:
            raise CatalogError(f"{PREFIX}{name}: a tenth of a second is the least")
    return options


def without_password(url: str) -> str:
    """An address that may be stored and shown."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "postgresql://…"
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}"))


def where_of(url: str) -> str:
    """The address without user, password and settings."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "catalog postgresql://…"
    hosts = parts.netloc.rpartition("@")[2] or "localhost"
    return f"catalog postgresql://{hosts}{parts.path}"
