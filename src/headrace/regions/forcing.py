"""An operator goes on without regions that do not answer a snapshot, and is told what is at risk.

Snapshots under way are known to the agent alone.  So a command leaves its wish in the catalog; the
agent carries it out in its next transaction over the segment, and leaves what came of it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.catalog import Tx, entries
from headrace.errors import LinkError
from headrace.host.clock import rest_s, steady_s
from headrace.log.log import Log
from headrace.regions.records import AGENT_LEASE, require_link
from headrace.regions.snapshots import FORCED_BUCKET, ForcedSnapshot, state_key, states

POLL_S = 0.02


class ForceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshots of a stream that were forced, or would be."""

    stream: str
    snapshots: tuple[ForcedSnapshot, ...]
    dry_run: bool = False


def force_snapshots(
    log: Log,
    stream: str,
    *,
    dry_run: bool = False,
    timeout_s: float = 10.0,
    clock: Callable[[], float] = steady_s,
) -> ForceReport:
    """Complete the snapshots under way without the regions that have not answered.

    Events of those regions that others have and this one had not seen come again there: nothing is
    skipped, since a snapshot carries what was seen.
    """
    log.catalog.read(lambda tx: require_link(tx, stream))
    waiting = log.catalog.read(lambda tx: _pending(tx, stream), snapshot=True)
    if dry_run:
        return ForceReport(stream=stream, snapshots=tuple(waiting.values()), dry_run=True)
    if not waiting:
        raise LinkError(
            f"no snapshot of stream {stream!r} is under way, so there is nothing to force; see: "
            "headrace region status"
        )
    if log.catalog.leases.get(AGENT_LEASE) is None:
        raise LinkError("no agent runs here, which would force it; start one: headrace region run")

    def ask(tx: Tx) -> None:
        for number, each in waiting.items():
            key = state_key(stream, number)
            entries.put(tx, FORCED_BUCKET, key, each.snapshot_id.encode())

    log.catalog.write(ask, locks=(entries.lock(FORCED_BUCKET),))
    began = clock()
    while any(log.catalog.read(lambda tx: entries.keys(tx, FORCED_BUCKET, f"{stream}/"))):
        if clock() - began > timeout_s:
            raise LinkError(
                f"the agent of this region has not answered within {timeout_s:g} s; it forces the "
                "snapshot when it does"
            )
        rest_s(POLL_S)
    ids = {each.snapshot_id for each in waiting.values()}
    done = log.catalog.read(
        lambda tx: [s.forced for (n, _), s in states(tx).items() if n == stream]
    )
    found = tuple(each for each in done if each is not None and each.snapshot_id in ids)
    return ForceReport(stream=stream, snapshots=found)


def _pending(tx: Tx, stream: str) -> dict[int, ForcedSnapshot]:
    return {
        number: ForcedSnapshot(
            segment=number,
            snapshot_id=state.pending[0].snapshot_id,
            missing=state.pending[0].waiting_for,
        )
        for (name, number), state in sorted(states(tx).items())
        if name == stream and state.pending
    }
