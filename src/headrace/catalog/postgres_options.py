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

from headrace.errors import CatalogError, CatalogUnavailableError

PREFIX = "headrace_"
FSYNC_VARIABLE = "HEADRACE_POSTGRES_FSYNC"
"""``off`` in the environment allows servers that do not sync, as ``headrace_fsync=off`` does."""

SECRET = ("password", "sslpassword", "passfile")
"""Settings of libpq that are nobody else's business."""

MALFORMED = (
    "the address of the catalog is malformed; write postgresql://user@host:port/database, and in a "
    "user or password %2F for /, %3F for ?, %23 for #, %40 for @ and %20 for a space"
)
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


def check_address(url: str) -> None:
    """Refuse an address of which nobody can tell where its password ends.

    With ``/``, ``?``, ``#`` or ``@`` in it, a part of a password would count as host or database,
    and be shown in messages.
    """
    if not _is_clear(url):
        raise CatalogUnavailableError(MALFORMED)


def _is_clear(url: str) -> bool:
    try:
        parts = urlsplit(url)
        parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        return False
    unclear = "@" in parts.path or parts.fragment or parts.netloc.count("@") > 1
    return not unclear and not any(char.isspace() for char in url)


def split(url: str) -> tuple[str, PostgresOptions]:
    """The address for the driver, and what it says to Headrace."""
    check_address(url)
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
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
    if not _is_clear(url):
        return "postgresql://…"
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = parts.query
    given = parse_qsl(query, keep_blank_values=True)
    if any(key.lower() in SECRET for key, _ in given):
        query = urlencode([(key, value) for key, value in given if key.lower() not in SECRET])
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", query=query))


def where_of(url: str) -> str:
    """The address without user, password and settings."""
    if not _is_clear(url):
        return "catalog postgresql://…"
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2] or "localhost"
    return f"catalog postgresql://{hosts}{parts.path}"
