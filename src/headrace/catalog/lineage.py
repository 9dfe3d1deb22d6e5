"""A catalog that went back: noticed at the next connection, before anything is done on it.

A standby that missed the last commits is promoted, a backup is put in the place of the database:
what a program knows of the catalog (offsets, tokens, its own progress) may then never have
happened, and the numbers are given out again for something else.  Nothing in a program's memory
may be stored over the new history.

The server tells which history it has: an identifier made with the database, and a *timeline* that
every promotion and every restore to a point in time counts up.  The catalog remembers the one it
was used under.  Who finds another one *fences*: one transaction, while nobody else writes, takes
every lease and every claim from its owner and raises their tokens beyond all that can have been
given out.  So each owner and each leader, in whatever process, finds itself fenced by the rules
that hold anyway, forgets what it knew, and begins from what is stored.  Each program also drops
its cached routes and wakes everybody who waits.

A copy of the files that is started again has the same identifier and timeline.  It is noticed by a
program that has seen more of the server's log on disk than there is now.

It costs nothing where nothing happened: the server's answer to the first query of a connection
holds all of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from psycopg.errors import InsufficientPrivilege, ReadOnlySqlTransaction

from headrace.catalog.postgres_calls import SCHEMA_LOCK
from headrace.catalog.postgres_connections import CLOCK, PgConnection

SETTING = "lineage"
RECORD = "lineage_turns"
HEADS = "lineage_heads "
"""With the time of a turn: how far segments reached then (:mod:`headrace.catalog.histories`)."""
TURNS_KEPT = 20
SESSIONS = "session "
"""The leases of sessions begin so."""
TOKENS_BEYOND = 1_000_000
"""How far tokens are raised: more than were given out and forgotten."""

_log = logging.getLogger(__name__)


class Turn(msgspec.Struct, frozen=True):
    """One time that a catalog's history was found to be another one."""

    at_us: int
    before: str
    after: str
    noticed_by: str
    why: str


turns = msgspec.json.Decoder(list[Turn]).decode
Mark: TypeAlias = tuple[int, int]
"""How often another history was found, and how much of the log was on disk."""


class Lineage:
    """The history that one program knows, and what it does when it is another."""

    def __init__(
        self,
        where: str,
        counted: Callable[[int], None],
        turned: Callable[[], None],
        *,
        fences: bool,
    ) -> None:
        """``counted`` is told of another history before anybody may use it, ``turned`` after."""
        self._where = where
        self._fences = fences
        """Not where a catalog is only looked at, and nothing may be changed in it."""
        self._counted, self._turned = counted, turned
        self._lock = threading.Lock()
        self._known: str | None = None
        self._flushed = 0
        self.turns = 0

    def is_current(self, connection: PgConnection) -> bool:
        """Whether a connection leads to the history that is known now."""
        server = connection.server
        return server.standby or self._known is None or server.lineage == self._known

    def seen(self, connection: PgConnection, flushed: int) -> None:
        """The log of a connection's server was on disk up to here."""
        with self._lock:
            if connection.server.lineage == self._known and connection.turn == self.turns:
                self._flushed = max(self._flushed, flushed)

    def mark(self) -> Mark:
        """What is known before a connection is made, whose server can only answer with more."""
        with self._lock:
            return self.turns, self._flushed

    def check(self, connection: PgConnection, mark: Mark, recorded: str | None = None) -> None:
        """Look at a new connection; fence if its history is another than the catalog's.

        What others have seen since its server was asked is no reason: this thread may have been
        paused in between.  ``recorded`` is the catalog's, if it has just been read.
        """
        server = connection.server
        if server.standby or not server.has_catalog:
            return
        with self._lock:
            same = server.lineage == self._known
            fell = same and self.turns == mark[0] and server.flushed < mark[1]
            if server.lineage in (self._known, recorded) and not fell:
                self._flushed = max(server.flushed, self._flushed if same else 0)
                self._known, connection.turn = server.lineage, self.turns
                return
            first = self._known is None
            why = "its log is shorter than it was" if fell else "another server or timeline"
            fenced = False
            # A role that may only read stores nothing over anything, and leaves it to the others.
            with contextlib.suppress(InsufficientPrivilege, ReadOnlySqlTransaction):
                fenced = self._fences and _fence(connection, why, force=fell)
            # Only now: if that failed, the next connection has to do it.
            self._known, self._flushed = server.lineage, server.flushed
            if first and not fenced:
                connection.turn = self.turns
                return
            # Before anybody else is let through to the new history: who reads of it can tell.
            self.turns = connection.turn = self.turns + 1
            self._counted(self.turns)
        _log.warning(
            "%s went back or changed its server (%s): all leases and claims were taken away, and "
            "everything is read anew",
            self._where,
            why,
        )
        self._turned()


def _fence(connection: PgConnection, why: str, *, force: bool) -> bool:
    """Take everything from everybody, once for each history; whether this was the one to do it."""
    found = connection.server.lineage
    row = connection.execute("SELECT value FROM meta WHERE key = %s", (SETTING,)).fetchone()
    if not force and row is not None and row[0] == found:
        return False
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        row = connection.execute("SELECT value FROM meta WHERE key = %s", (SETTING,)).fetchone()
        if not force and row is not None and row[0] == found:
            return False
        put(connection, SETTING, found)
        if row is None:
            return False  # a catalog that has just been made, or is from before this was recorded
        # A reader group's tokens are the revisions of its state, which goes on from where it is.
        connection.execute(
            "UPDATE claims SET owner = NULL, token = token + "
            "CASE WHEN starts_with(group_name, 'reader/') THEN 0 ELSE %s END",
            (TOKENS_BEYOND,),
        )
        # Sessions go on: what they own is taken away, and they take it again.
        connection.execute(
            "UPDATE leases SET owner = NULL, expires_us = 0, token = token + %s "
            "WHERE NOT starts_with(name, %s)",
            (TOKENS_BEYOND, SESSIONS),
        )
        _record(connection, row[0], found, why)
    return True


def _record(connection: PgConnection, before: str, after: str, why: str) -> None:
    row = connection.execute(f"SELECT {CLOCK}").fetchone()
    kept = connection.execute("SELECT value FROM meta WHERE key = %s", (RECORD,)).fetchone()
    assert row is not None
    mine = Turn(int(row[0]), before, after, f"{socket.gethostname()}:{os.getpid()}", why)
    known = [] if kept is None else turns(kept[0])
    put(connection, RECORD, msgspec.json.encode([*known, mine][-TURNS_KEPT:]).decode())
    connection.execute(
        "INSERT INTO meta (key, value) "
        "SELECT %s, coalesce(json_object_agg(id, head)::text, '{}') FROM segments",
        (f"{HEADS}{mine.at_us}",),
    )
    for turn in [*known, mine][:-TURNS_KEPT]:
        connection.execute("DELETE FROM meta WHERE key = %s", (f"{HEADS}{turn.at_us}",))


def put(connection: PgConnection, key: str, value: str) -> None:
    """Store a setting."""
    connection.execute(
        "INSERT INTO meta (key, value) VALUES (%s, %s) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )
