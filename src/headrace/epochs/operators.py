"""What an operator does for a publisher that will not come back; each fences it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headrace.catalog import Tx, epochs, leases
from headrace.catalog.epochs import PublisherRow
from headrace.epochs.core import ledger, lines
from headrace.epochs.core.commits import AbortStream, EpochCommit, GiveUp
from headrace.epochs.core.ledger import LedgerState, PublisherState
from headrace.epochs.core.times import Time
from headrace.epochs.runtime import recorded
from headrace.epochs.runtime.commit import Ledgered, commit
from headrace.epochs.runtime.opening import find
from headrace.epochs.runtime.progress_log import load_state
from headrace.errors import InvalidInputError, UnreadableRecordError
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
        _salvage(tx, where, change)
        decided, before = commit(tx, where, change)
        leases.fence(tx, lease)
        moved = f"frontier {ledger.shown(before.lower)} became {ledger.shown(decided.state.lower)}"
        recorded.note(tx, stream, What.FENCED, f"{what} by an operator; {moved}", source=publisher)

    locks = [*where.locks, leases.lock(lease), *recorded.locks([stream])]
    log.catalog.write(run, locks=locks)


def _salvage(tx: Tx, where: Ledgered, change: EpochCommit) -> None:
    """Write the state of a publisher anew if it cannot be read.

    The stream's own state tells which times are held: what the others do not hold is its own.
    Where others cannot be read either, it is not known whose it is, and the last of them gets it.
    """
    stream, name = where.stream, change.publisher
    state = load_state(tx, stream)
    rows = {row.name: row for row in epochs.publishers(tx, stream.id)}
    if name not in rows or _read(state, rows[name]) is not None:
        return
    found = {each: _read(state, row) for each, row in rows.items()}
    others = [each for each, held in found.items() if held is None and each != name]
    if others and isinstance(change, GiveUp) and change.event == lines.ROLLED_BACK:
        raise UnreadableRecordError(
            f"the states of publishers {name!r} and {', '.join(map(repr, others))} cannot be read, "
            "so nobody knows which of them holds what; restore the catalog from a backup, or "
            f"keep what they left: headrace epoch release {stream.name} {name}",
            name,
        )
    left = _unaccounted(state, [held for held in found.values() if held is not None])
    anew = PublisherState(name, () if others else left)
    now_us = tx.now_us()
    epochs.put_publisher(tx, stream.id, name, ledger.encode_state(anew), now_us, now_us)


def _read(state: LedgerState, row: PublisherRow) -> PublisherState | None:
    """What a publisher holds; None if its record is damaged."""
    try:
        found = ledger.decode_publisher(row.state, row.name, state.stream)
    except UnreadableRecordError:
        return None
    return found if _is_known(state, found) else None


def _unaccounted(state: LedgerState, known: Iterable[PublisherState]) -> tuple[Time, ...]:
    """The held times that none of these publishers holds: those of the ones not to be read."""
    counts = Counter(dict(state.held))
    counts.subtract(time for each in known for time in each.held)
    return tuple(counts.elements())


def _is_known(state: LedgerState, publisher: PublisherState) -> bool:
    """Whether the stream's own state knows of all that a publisher holds."""
    return Counter(publisher.held) <= Counter(dict(state.held))
