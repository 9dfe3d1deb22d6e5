"""Planted bugs in the runtime of shared groups, which no simulation of cores alone can find."""

from __future__ import annotations

from functools import partial
from typing import Any

from headrace.groups.shared.core.records import Commit
from headrace.groups.shared.runtime.borrowing import Borrowing
from headrace.groups.shared.runtime.leading import Leading
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


PLANTED: tuple[PlantedBug, ...] = (
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
