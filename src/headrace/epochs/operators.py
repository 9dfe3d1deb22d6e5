"""What an operator does for a publisher that will not come back; each fences it."""

from __future__ import annotations

from headrace.catalog import Tx, epochs, leases
from headrace.epochs.core import ledger, lines
from headrace.epochs.core.commits import AbortStream, EpochCommit, GiveUp
from headrace.epochs.runtime import recorded
from headrace.epochs.runtime.commit import commit
from headrace.epochs.runtime.opening import find
from headrace.errors import InvalidInputError
from headrace.groups.decisions import What
from headrace.log.log import Log
from headrace.subjects import check_name


def roll_back(log: Log, stream: str, publisher: str) -> None:
    """Take back what it put into epochs it still holds, and give those up."""
    _fenced(log, stream, publisher, GiveUp(publisher, 0, lines.ROLLED_BACK), "rolled back")


def release(log: Log, stream: str, publisher: str) -> None:
    """Give up the times it holds: what is there counts as complete."""
    _fenced(log, stream, publisher, GiveUp(publisher, 0, lines.RELEASED), "released")


def abort(log: Log, stream: str, publisher: str, reason: str) -> None:
    """End the stream as aborted."""
    if not reason.strip():
        raise InvalidInputError("abort needs a reason, for those who read the stream")
    change = AbortStream(publisher, 0, reason)
    _fenced(log, stream, publisher, change, f"stream aborted ({reason})")


def _fenced(log: Log, stream: str, publisher: str, change: EpochCommit, what: str) -> None:
    check_name(publisher, "publisher")
    where = find(log, stream)
    lease = epochs.lease_name(where.stream.id, publisher)

    def run(tx: Tx) -> None:
        decided, before = commit(tx, where, change)
        leases.fence(tx, lease)
        moved = f"frontier {ledger.shown(before.lower)} became {ledger.shown(decided.state.lower)}"
        recorded.note(tx, stream, What.FENCED, f"{what} by an operator; {moved}", source=publisher)

    locks = [*where.locks, leases.lock(lease), *recorded.locks([stream])]
    log.catalog.write(run, locks=locks)
