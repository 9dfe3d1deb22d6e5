"""Planted bugs in the runtime of shared groups, which no simulation of cores alone can find."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from headrace.catalog import Tx, leases
from headrace.catalog.streams import StreamConfig
from headrace.errors import LeaseLost
from headrace.groups.progress import Progress
from headrace.groups.progress.store import load
from headrace.groups.shared.core.records import ClaimRecord, Commit, ProgressRecord
from headrace.groups.shared.runtime import state
from headrace.groups.shared.runtime.borrowing import Borrowing
from headrace.groups.shared.runtime.leading import Leading
from headrace.groups.shared.runtime.state import SegmentKey
from headrace.log.open import open_log
from headrace.sim.faults import Fault
from headrace.sim.planted import PlantedBug, by_seeds, patched


def _answers_before_it_is_stored(original: Any) -> Any:
    def store(self: Leading, commit: Commit) -> Any:
        if commit.claims or commit.forget:
            return original(self, commit)
        host = self.home.host
        stored = partial(self._stored, commit, [], None)
        host.submit(self._transaction(commit, 0), (), lambda *_: None)
        host.loop.call_soon(stored)
        return None

    return store


def _hands_over_what_is_in_flight(_: Any) -> Any:
    def release(self: Borrowing, held: Any) -> None:
        held.releasing = True
        self._final(held, held.reported)

    return release


def _takes_a_failure_for_success(original: Any) -> Any:
    def stored(self: Leading, commit: Commit, claimed: Any, error: Any) -> None:
        ignored = error is not None and not commit.claims
        original(self, commit, [] if ignored else claimed, None if ignored else error)

    return stored


def _lets_former_leaders_write(_: Any) -> Any:
    return lambda _tx, _name, _token: None


def _by_a_frozen_commit() -> str | None:
    """A leader is frozen within a commit, and thaws when its unit has another owner.

    A script, and no seeds: the simulated store runs a commit at once, so none is ever frozen; and
    a leader that wakes up steps down by its own clock, before it makes another.
    """
    group, unit = "g:orders.>", "orders/0"
    name, lock = state.lease_name(group), leases.lock(state.lease_name(group))
    folder = Path(tempfile.mkdtemp())
    log = open_log(folder / "log")
    try:
        log.create_stream("orders", StreamConfig(("orders.>",)), 1)
        segment = log.stream("orders").segments[0]
        segments = {unit: SegmentKey(log.stream("orders").id, segment.id)}

        def lead(peer: str) -> int:
            def take(tx: Tx) -> int:
                leases.fence(tx, name)
                lease = leases.acquire(tx, name, peer, 60_000)
                assert lease is not None
                return lease.token

            return log.catalog.write(take, locks=(lock,))

        def store(commit: Commit) -> None:
            log.catalog.write(
                lambda tx: state.run_commit(tx, group, commit, segments),
                locks=state.locks(group, commit),
            )

        former = lead("former")
        store(Commit(1, former, (), (ClaimRecord(unit, "a:1:1", 1),), ()))
        frozen = Commit(2, former, (ProgressRecord(unit, Progress(5), False),), (), ())
        store(Commit(1, lead("next"), (), (ClaimRecord(unit, "b:1:1", 2),), ()))
        with contextlib.suppress(LeaseLost):
            store(frozen)
        here = log.catalog.read(lambda tx: load(tx, group, segment.id)) or Progress()
        return f"acks of the former owner count after the hand-over: {here}" if here.floor else None
    finally:
        log.catalog.close()
        shutil.rmtree(folder, ignore_errors=True)


PLANTED: tuple[PlantedBug, ...] = (
    PlantedBug(
        "shared/former-leader-writes",
        "the store takes the writes of a former leader",
        partial(patched, leases, "check", _lets_former_leaders_write),
        _by_a_frozen_commit,
    ),
    PlantedBug(
        "shared/answered-early",
        "a leader hears that its commit is stored when it was only handed over",
        partial(patched, Leading, "_store", _answers_before_it_is_stored),
        by_seeds("shared", 10, steps=1000),
    ),
    PlantedBug(
        "shared/failure-ignored",
        "a leader hears that its commit is stored when the store has refused it",
        partial(patched, Leading, "_stored", _takes_a_failure_for_success),
        by_seeds("shared", 10, steps=1000),
    ),
    PlantedBug(
        "shared/not-drained",
        "a unit is given back while its events are in the hands of the application",
        partial(patched, Borrowing, "_release", _hands_over_what_is_in_flight),
        by_seeds("shared", 10, steps=800, faults=frozenset({Fault.SCALE, Fault.FAIL})),
    ),
)
