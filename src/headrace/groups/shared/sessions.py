"""Sessions in the catalog: what a session is subscribed to, who runs it, and when it is over.

A session is an entry (its subscriptions and how long they are kept) and a lease (who runs it).
Opening a session seizes the lease: a process that ran it before is fenced from that commit on, and
hears of it.  A persistent session that nobody runs is kept for its time, then forgotten with the
progress of its private subscriptions; an in-memory one goes with its process.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from headrace.catalog import Query, Tx, claims, entries, leases
from headrace.catalog.records import Records
from headrace.errors import (
    InvalidInputError,
    LeaseLost,
    SessionBusyError,
    SessionTakenOverError,
    UnknownSessionError,
    UnreadableRecordError,
)
from headrace.groups.shared import ended_units
from headrace.groups.shared.keys import SESSIONS_BUCKET, session_lease

BUCKET = SESSIONS_BUCKET
lease_name = session_lease
TTL_MS = 15_000
HEARTBEAT_MS = 5_000
EXPIRY_MS_MAX = 366 * 24 * 3600 * 1000
EXPIRY_MS = 7 * 24 * 3600 * 1000


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """One subscription of a session."""

    text: str
    """``$share/GROUP/FILTER``, or a filter for a private one."""
    filter: str
    shared: bool
    start: str = ""
    """Where it was asked to begin; empty where nobody said."""


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is stored."""

    name: str
    persistent: bool
    expiry_ms: int
    """How long it is kept while nobody runs it."""
    created_us: int
    seen_us: int
    subscriptions: tuple[Subscription, ...] = ()
    unnamed: bool = False
    """Its name was made up, and nobody will use it again: nothing of it need be remembered."""


_records = Records(
    SessionRecord,
    "session",
    "remove it: headrace session rm {name}",
    bucket=BUCKET,
    key=lambda record: record.name,
)


class _Salvaged(msgspec.Struct, frozen=True):
    """What deleting a session needs to know of it."""

    subscriptions: tuple[Subscription, ...] = ()


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session, and whether somebody runs it."""

    record: SessionRecord
    node: str | None
    """Who runs it; None when nobody does."""
    token: int
    expires_us: int | None
    """When it will be forgotten; None while it is run."""


def private_group(session: str, filter: str) -> str:
    """The group name of a private subscription's progress; ``~`` cannot begin a real group's."""
    return f"~{session}:{filter}"


def locks(name: str) -> tuple[str, ...]:
    """The locks for opening, changing or deleting a session."""
    return (entries.lock(BUCKET), leases.lock(lease_name(name)))


def check_expiry(expiry_ms: int) -> int:
    """The time, or an error that says what is allowed."""
    if type(expiry_ms) is not int or not 0 <= expiry_ms <= EXPIRY_MS_MAX:
        raise InvalidInputError(
            f"expiry_ms is {expiry_ms!r}; it must be an integer, 0 to {EXPIRY_MS_MAX}"
        )
    return expiry_ms


def asking(name: str) -> tuple[Query, ...]:
    """The queries for a session and for who runs it."""
    return entries.asking(BUCKET, name), leases.asking(lease_name(name))


def get(tx: Tx, name: str) -> SessionRecord | None:
    """A session as it is stored."""
    entry = entries.get(tx, BUCKET, name)
    if entry is None or entry.value is None:
        return None
    return _records.decode(name, entry.value)


def put(tx: Tx, record: SessionRecord) -> None:
    """Store a session."""
    entries.store(tx, BUCKET, record.name, _records.encode(record.name, record))


def open(
    tx: Tx, name: str, peer: str, *, persistent: bool, expiry_ms: int, unnamed: bool = False
) -> tuple[SessionRecord, int]:
    """Take a session over, or begin one; returns it with the token of whoever runs it now."""
    lease_row = leases.asking_taking(tx, lease_name(name))
    tx.foresee(*asking(name), lease_row, leases.asking_floor())
    found = get(tx, name)
    if found is not None and (is_over(tx, found) or not found.persistent or not persistent):
        forget(tx, found)
        found = None
    lease = leases.seize(tx, lease_name(name), peer, TTL_MS)
    now_us = tx.now_us()
    record = SessionRecord(
        name=name,
        persistent=persistent,
        expiry_ms=expiry_ms,
        created_us=found.created_us if found else now_us,
        seen_us=now_us,
        subscriptions=found.subscriptions if found else (),
        unnamed=unnamed,
    )
    put(tx, record)
    return record, lease.token


def subscribe(tx: Tx, name: str, token: int, added: Subscription) -> None:
    """Store a subscription of a session that this process runs."""
    add(tx, owned(tx, name, token), added)


def add(tx: Tx, record: SessionRecord, added: Subscription) -> None:
    """Store a subscription of a session as it was read in this transaction."""
    kept = tuple(each for each in record.subscriptions if each.text != added.text)
    put(tx, msgspec.structs.replace(record, subscriptions=(*kept, added), seen_us=tx.now_us()))


def unsubscribe(tx: Tx, name: str, token: int, text: str) -> None:
    """Forget a subscription, with its progress if it is private."""
    record = owned(tx, name, token)
    for each in record.subscriptions:
        if each.text == text and not each.shared:
            ended_units.forget_group(tx, private_group(name, each.filter))
    kept = tuple(each for each in record.subscriptions if each.text != text)
    put(tx, msgspec.structs.replace(record, subscriptions=kept, seen_us=tx.now_us()))


def owned(tx: Tx, name: str, token: int) -> SessionRecord:
    """The session, if this token is the newest; else it was taken over."""
    tx.foresee(*asking(name))
    try:
        leases.check(tx, lease_name(name), token)
    except LeaseLost:
        raise taken_over(name) from None
    record = get(tx, name)
    if record is None:
        raise taken_over(name)
    return record


def taken_over(name: str) -> SessionTakenOverError:
    """The error for a process whose session was taken over."""
    return SessionTakenOverError(
        f"session {name!r} was opened by another process, or removed; this one is over"
    )


def touch(tx: Tx, name: str, token: int) -> None:
    """Heartbeat: renew the lease of whoever runs the session."""
    owned(tx, name, token)
    leases.extend(tx, lease_name(name), token, TTL_MS)


def close(tx: Tx, name: str, token: int) -> None:
    """Nobody runs the session any more; an in-memory one is over."""
    try:
        record = owned(tx, name, token)
    except SessionTakenOverError:
        return
    leases.release(tx, lease_name(name), token)
    if record.persistent and record.expiry_ms:
        put(tx, msgspec.structs.replace(record, seen_us=tx.now_us()))
    else:
        forget(tx, record)


def forget(tx: Tx, record: SessionRecord) -> None:
    """Delete a session and the progress of its private subscriptions.

    Whoever ran it is fenced also when somebody else takes the name; nobody ever takes the one of
    a session without a name.
    """
    for each in record.subscriptions:
        if not each.shared:
            group = private_group(record.name, each.filter)
            if record.unnamed:
                claims.forget(tx, group)
            ended_units.forget_group(tx, group)
    if record.unnamed:
        leases.forget(tx, lease_name(record.name))
    else:
        leases.retire(tx, lease_name(record.name))
    entries.delete(tx, BUCKET, record.name)


def is_over(tx: Tx, record: SessionRecord) -> bool:
    """Whether nobody has run the session for longer than it is kept."""
    expires_us = info(tx, record).expires_us
    return expires_us is not None and tx.now_us() > expires_us


def info(tx: Tx, record: SessionRecord) -> SessionInfo:
    """A session, and whether somebody runs it."""
    owner, token, until_us = leases.last(tx, lease_name(record.name))
    if owner is not None and until_us > tx.now_us():
        return SessionInfo(record=record, node=owner, token=token, expires_us=None)
    # A process that died was seen last when it renewed its lease.
    seen_us = max(record.seen_us, until_us - TTL_MS * 1000)
    kept_us = record.expiry_ms * 1000 if record.persistent else 0
    return SessionInfo(record=record, node=None, token=token, expires_us=seen_us + kept_us)


def all_sessions(tx: Tx) -> list[SessionInfo]:
    """Every session that is not over, by name."""
    found = []
    for record in _every(tx):
        if not is_over(tx, record):
            found.append(info(tx, record))
    return sorted(found, key=lambda each: each.record.name)


def require(tx: Tx, name: str) -> SessionInfo:
    """One session that is not over."""
    record = get(tx, name)
    if record is None or is_over(tx, record):
        raise UnknownSessionError(f"there is no session {name!r}")
    return info(tx, record)


def over(tx: Tx) -> dict[str, SessionInfo]:
    """The sessions that are over, by name; reads all sessions, so it is not for a write."""
    return {record.name: info(tx, record) for record in _every(tx) if is_over(tx, record)}


def _every(tx: Tx) -> list[SessionRecord]:
    """The records of all sessions; who runs them has been asked for."""
    records = _records.readable(entries.changes(tx, BUCKET, 0).entries)
    tx.foresee(*(leases.asking(lease_name(record.name)) for record in records))
    return records


def sweep(tx: Tx, seen: Iterable[SessionInfo]) -> None:
    """Forget the sessions that are over and as they were seen ``TTL_MS`` ago.

    One that somebody runs would have been renewed meanwhile: the wall clock was put forward.
    """
    for each in seen:
        record = get(tx, each.record.name)
        if record is not None and is_over(tx, record) and info(tx, record) == each:
            forget(tx, record)


def removable(tx: Tx, name: str) -> SessionInfo:
    """A session to delete; of one that cannot be read, as much as is needed for that."""
    try:
        return require(tx, name)
    except UnreadableRecordError:
        return info(tx, _salvaged(tx, name))


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_salvaged_decoder = msgspec.json.Decoder(_Salvaged)


def _salvaged(tx: Tx, name: str) -> SessionRecord:
    """A record that cannot be read, with those of its subscriptions that can."""
    entry = entries.get(tx, BUCKET, name)
    subscriptions: tuple[Subscription, ...] = ()
    with suppress(msgspec.MsgspecError, UnicodeError):
        found = _salvaged_decoder.decode(entry.value if entry and entry.value else b"")
        subscriptions = found.subscriptions
    return SessionRecord(
        name=name,
        persistent=True,
        expiry_ms=EXPIRY_MS,
        created_us=0,
        seen_us=tx.now_us(),
        subscriptions=subscriptions,
    )


def remove(tx: Tx, name: str, *, force: bool) -> None:
    """Delete a session; one that is run only with `force`, and its process is fenced."""
    running = removable(tx, name)
    record = running.record
    if running.node is not None:
        if not force:
            raise SessionBusyError(
                f"session {name!r} is run by {running.node}; close it there, or use force"
            )
        leases.release(tx, lease_name(name), running.token)
    forget(tx, record)
