"""Becoming the active program of a publisher: the lease, and what an earlier life left behind.

All of it is one transaction.  A lease that was given back was left cleanly, and its rows stay.  One
that ran out was not: what that program put into epochs it still held is taken back, so that the
frontier is where the source resumes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.catalog import Tx, epochs, leases, streams
from headrace.catalog.leases import Lease
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.commits import EpochCommit, JoinStream, Publish
from headrace.epochs.core.ledger import PublisherState
from headrace.epochs.core.times import Time
from headrace.epochs.runtime import recorded
from headrace.epochs.runtime.commit import Ledgered, Tenure, commit
from headrace.epochs.runtime.progress_log import ProgressLog, begin, epochs_of, load_state
from headrace.errors import FrontierError, InvalidInputError, NotStoredError
from headrace.groups.decisions import What
from headrace.log import internal
from headrace.log.log import Log

Recover = Literal["rollback", "keep"]
LEASE_TTL_MS = 5000
LEASE_TTL_MS_MIN, LEASE_TTL_MS_MAX = 100, 3_600_000


def check_settings(recover: Recover, lease_ttl_ms: int) -> None:
    """Refuse what no publisher can be opened with."""
    if recover not in ("rollback", "keep"):
        raise InvalidInputError(f"recover={recover!r}: it is 'rollback' or 'keep'")
    if not LEASE_TTL_MS_MIN <= lease_ttl_ms <= LEASE_TTL_MS_MAX:
        raise InvalidInputError(
            f"lease_ttl_ms={lease_ttl_ms}: it is {LEASE_TTL_MS_MIN} to {LEASE_TTL_MS_MAX}"
        )


class Recovered(msgspec.Struct, frozen=True):
    """What a take-over took back: how many rows of which epochs."""

    rows: dict[Time, int] = {}

    @property
    def total(self) -> int:
        return sum(self.rows.values())


class Begun(msgspec.Struct, frozen=True):
    """The lease was won; ``taken_back`` are the lines (first, end) whose rows may be affected."""

    lease: Lease
    state: PublisherState
    lower: Frontier
    taken_back: tuple[int, int] | None
    unclean: bool


class Busy(msgspec.Struct, frozen=True):
    """Another program has the lease, and for how long at least."""

    lease: Lease
    left_ms: int


def find(log: Log, name: str) -> Ledgered:
    """The stream and its progress log; raises if it has no epochs, or keeps none."""

    def look(tx: Tx) -> Ledgered:
        stream = streams.require(tx, name)
        if not epochs_of(stream).stored:
            raise NotStoredError(
                f"stream {name!r} stores nothing: its rows go from publishers to subscribers "
                "directly; make one with stored=True to keep and replay epochs"
            )
        return Ledgered(stream, streams.require(tx, internal.progress_log(name)))

    return log.catalog.read(look, snapshot=True)


def leave(tx: Tx, where: Ledgered, name: str, token: int) -> None:
    """Give the lease back, if it is still this program's; the times stay held."""
    if leases.release(tx, epochs.lease_name(where.stream.id, name), token):
        reason = f"publisher {name} has left; its times stay held"
        recorded.note(tx, where.stream.name, What.LEFT, reason, source=name, token=token)


def finish(tx: Tx, where: Ledgered, change: EpochCommit, held: Tenure, how: str) -> None:
    """Give the times up, and the lease."""
    commit(tx, where, change, held)
    leases.release(tx, epochs.lease_name(where.stream.id, held.name), held.token)
    reason = f"publisher {held.name} {how}"
    recorded.note(tx, where.stream.name, What.FINISHED, reason, source=held.name, token=held.token)


def _busy(tx: Tx, lease_name: str) -> Busy:
    """Who has the lease, and for how long: no longer than it lasts, if the clock was put back."""
    found, renewed = leases.get(tx, lease_name), leases.last_owner(tx, lease_name)
    assert found is not None
    left_us = found.expires_us - tx.now_us()
    if renewed is not None and renewed.heard_us:
        left_us = min(left_us, found.expires_us - renewed.heard_us)
    return Busy(found, left_us // 1000)


def try_open(
    tx: Tx,
    where: Ledgered,
    name: str,
    owner: str,
    ttl_ms: int,
    *,
    start: Frontier | None,
    recover: Recover,
    over: Lease | None,
) -> Begun | Busy:
    """Take the lease and go on where the last program was; how long another has it."""
    lease_name = epochs.lease_name(where.stream.id, name)
    last_owner, *_ = leases.last(tx, lease_name)
    lease = leases.acquire(tx, lease_name, owner, ttl_ms, over)
    if lease is None:
        return _busy(tx, lease_name)
    held = Tenure(name, lease.token, ttl_ms)
    known = _known(tx, where, name)
    unclean = last_owner is not None and known is not None
    if known is None:
        return _joined(tx, where, lease, held, start)
    if start is not None and ledger.minimal(where.shape, known.held) != start and known.line >= 0:
        raise FrontierError(
            "it is a publisher already and goes on where it was; leave start out",
            update=f"publisher {name!r} of stream {where.stream.name!r} starting at "
            f"{ledger.shown(start)}",
            state=f"holding {ledger.shown(known.held)}",
        )
    state = _state(tx, where)
    # Its last rows may lie in an open epoch only if its last line is not before all of those.
    takes_back = unclean and recover == "rollback" and known.line >= state.first_open
    change = Publish(name, lease.token, (), take_back=takes_back, resumes=True)
    decided, before = commit(tx, where, change, held)
    assert decided.publisher is not None
    held_from = ledger.shown(ledger.minimal(where.shape, decided.publisher.held))
    its_rows = "takes back its rows there" if takes_back else "its rows there stay"
    recorded.taken_over(
        tx,
        where.stream.name,
        name,
        before=last_owner if unclean else None,
        now=owner,
        token=lease.token,
        goes_on=f"a program goes on as publisher {name} at {held_from}, {its_rows}",
    )
    lines = (before.first_open, before.line) if takes_back else None
    return Begun(lease, decided.publisher, decided.state.lower, lines, unclean)


def _joined(tx: Tx, where: Ledgered, lease: Lease, held: Tenure, start: Frontier | None) -> Begun:
    name = held.name
    decided, _ = commit(tx, where, JoinStream(name, lease.token, start), held)
    assert decided.publisher is not None
    recorded.note(
        tx,
        where.stream.name,
        What.JOINED,
        f"publisher {name} holds {ledger.shown(decided.publisher.held)} from now on",
        target=name,
        instance=lease.owner,
        token=lease.token,
    )
    return Begun(lease, decided.publisher, decided.state.lower, None, unclean=False)


def standing_of(
    log: Log, where: Ledgered, name: str
) -> tuple[ledger.LedgerState, PublisherState | None]:
    """The ledger of a stream and of a publisher (None: it is none yet), to look at."""
    return log.catalog.read(lambda tx: (_state(tx, where), _known(tx, where, name)), snapshot=True)


def _state(tx: Tx, where: Ledgered) -> ledger.LedgerState:
    return load_state(tx, where.stream)


def _known(tx: Tx, where: Ledgered, name: str) -> PublisherState | None:
    standing = epochs.standing(tx, where.stream.id, name)
    if standing.stream is None:
        return next((each for each in begin(where.stream)[1] if each.name == name), None)
    known = standing.publisher
    return None if known is None else ledger.decode_publisher(known, name, where.stream.name)


def taken_back(log: Log, where: Ledgered, opened: Begun) -> Recovered:
    """How many rows of which epochs a take-over took back, from the lines themselves."""
    if opened.taken_back is None:
        return Recovered()
    return rows_taken_back(log, where, opened.state.name, *opened.taken_back)


def rows_taken_back(log: Log, where: Ledgered, name: str, first: int, number: int) -> Recovered:
    """The rows of ``name`` in lines from ``first`` on that line ``number`` took back."""
    progress = ProgressLog(log, where.stream)
    taking = progress.line(number)
    shape = where.shape
    found: dict[Time, int] = {}
    for _, line in progress.scan(first, number):
        if line.publisher != name:
            continue
        if line.taken_back:
            found = {t: n for t, n in found.items() if not line.takes_back(shape, name, t)}
        for time, count in line.rows_by_time().items():
            if taking.takes_back(shape, name, time):
                found[time] = found.get(time, 0) + count
    return Recovered(dict(sorted(found.items())))
