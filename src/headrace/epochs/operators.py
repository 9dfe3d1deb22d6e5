"""What an operator does for a publisher that will not come back; each fences it."""

from __future__ import annotations

from headrace.catalog import Tx, epochs, leases
from headrace.epochs.core import lines
from headrace.epochs.core.commits import AbortStream, EpochCommit, GiveUp
from headrace.epochs.runtime.commit import commit
from headrace.epochs.runtime.opening import find
from headrace.errors import InvalidInputError
from headrace.log.log import Log
from headrace.subjects import check_name


def roll_back(log: Log, stream: str, publisher: str) -> None:
    """Take back what it put into epochs it still holds, and give those up."""
    _fenced(log, stream, publisher, GiveUp(publisher, 0, lines.ROLLED_BACK))


def release(log: Log, stream: str, publisher: str) -> None:
    """Give up the times it holds: what is there counts as complete."""
    _fenced(log, stream, publisher, GiveUp(publisher, 0, lines.RELEASED))


def abort(log: Log, stream: str, publisher: str, reason: str) -> None:
    """End the stream as aborted."""
    if not reason.strip():
        raise InvalidInputError("abort needs a reason, for those who read the stream")
    _fenced(log, stream, publisher, AbortStream(publisher, 0, reason))


def _fenced(log: Log, stream: str, publisher: str, change: EpochCommit) -> None:
    check_name(publisher, "publisher")
    where = find(log, stream)
    lease = epochs.lease_name(where.stream.id, publisher)

    def run(tx: Tx) -> None:
        commit(tx, where, change)
        leases.fence(tx, lease)

    log.catalog.write(run, locks=[*where.locks, leases.lock(lease)])
