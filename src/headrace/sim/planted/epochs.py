"""Planted bugs of epochs: what early systems of this kind got wrong, and what one might.

Among the former: a filter pruned when the frontier only reaches it, an upper frontier cut by its
own partition's progress, tuples compared by their first difference, data judged before all
snapshots are there, a broken connection taken for the end of the stream, subscribers that are
never removed, and later ones that starve when an early one has left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.epochs import (
    Data,
    Dropped,
    FrontierUpdate,
    Publisher,
    Snapshot,
    Subscriber,
    TimeShape,
)
from headrace.epochs.core.active import ActiveEpochs
from headrace.epochs.core.antichains import Antichain, CountedAntichain, Frontier, leave_out
from headrace.epochs.core.gate import Gate
from headrace.epochs.core.lifecycle import Cause, Standing
from headrace.epochs.core.pending import Pending
from headrace.epochs.core.queues import SubscriberQueue
from headrace.errors import FrontierError
from headrace.sim.planted import Original, PlantedBug, by_seeds, patched
from headrace.sim.scenarios.epochs_log import LogStart, PartitionLog


def _nothing(original: Original) -> Original:  # noqa: ARG001
    return lambda *args, **kwargs: None  # noqa: ARG005


def _pruned_at_equality(original: Original) -> Original:
    def settle(self: Subscriber, effects: list[Any]) -> None:
        self._gate.filter.prune(lambda time: time not in self._lower.frontier)
        original(self, effects)

    return settle


def _upper_cut_by_own_lower(original: Original) -> Original:
    def progress(self: Publisher, updates: Any) -> Any:
        published = original(self, updates)
        self._upper.prune(self._held.covers)
        return published

    return progress


def _filter_cut_by_own_lower(original: Original) -> Original:
    def begin(self: Subscriber, effects: list[Any]) -> None:
        for name, snapshot in self._snapshots.items():
            lower = Antichain.minimal(self.shape, snapshot.lower)
            upper = tuple(time for time in snapshot.upper if lower.covers(time))
            self._snapshots[name] = Snapshot(snapshot.lower, upper)
        original(self, effects)

    return begin


def _first_difference(original: Original) -> Original:  # noqa: ARG001
    return lambda self, first, second: first <= second  # noqa: ARG005


def _judged_at_once(original: Original) -> Original:
    def hold(self: Subscriber, link: Any, step: Any) -> Any:
        partition, message, _ = step
        if not isinstance(message, Data):
            return original(self, link, step)
        for snapshot in self._snapshots.values():
            self._gate.begun(snapshot.upper)
        effects: list[Any] = []
        self._judge_data(partition, message, effects)
        return effects

    return hold


def _aborted_is_closed(original: Original) -> Original:
    def finish(self: Subscriber, cause: Cause, reason: str, effects: list[Any]) -> None:
        if cause is Cause.LOSS:
            self.standing = Standing.LIVE
            cause = Cause.COMPLETE
        original(self, cause, reason, effects)

    return finish


def _starves_later_ones(original: Original) -> Original:
    """Only as many slots are served as there are subscribers; a slot freed is used again."""

    def event(self: Publisher, *args: Any, **kwargs: Any) -> Any:
        slots = self.__dict__.setdefault("_slots", {})
        for gone in [name for name in slots if name not in self._queues]:
            del slots[gone]
        for name in self._queues:
            if name not in slots:
                slots[name] = next(n for n in range(len(slots) + 1) if n not in slots.values())
        everyone = self._queues
        count = len(everyone)
        self._queues = {name: q for name, q in everyone.items() if slots[name] < count}
        try:
            return original(self, *args, **kwargs)
        finally:
            starved = {name: q for name, q in everyone.items() if slots[name] >= count}
            served = self._queues
            self._queues = {n: q for n, q in everyone.items() if n in served or n in starved}

    return event


def _never_full(original: Any) -> Any:  # noqa: ARG001
    return property(lambda self: False)  # noqa: ARG005


def _skips_in_silence(original: Original) -> Original:  # noqa: ARG001
    def skip(self: SubscriberQueue, data: Data, now: Snapshot) -> None:  # noqa: ARG001
        kept = [message for message in self._messages if not isinstance(message, Data)]
        self._messages.clear()
        self._messages.extend(kept)
        self._batches = 0

    return skip


def _any_time(original: Original) -> Original:
    return lambda self, updates, forward=True: original(self, updates, forward=False)  # noqa: ARG005


def _set_not_multiset(original: Original) -> Original:
    def count(self: CountedAntichain, net: Any) -> Any:
        fresh = original(self, net)
        for time, delta in net.items():
            if delta < 0:
                self.counts.pop(time, None)
        return fresh

    return count


def _forgets_the_start(original: Original) -> Original:
    def verdict(self: Gate, time: Any) -> Any:
        start, self.start = self.start, None
        try:
            return original(self, time)
        finally:
            self.start = start

    return verdict


def _starts_at_the_marker(original: Original) -> Original:
    """Reading begins where the frontier was reached, not where its first data is."""

    def start(self: PartitionLog, frontier: Any) -> LogStart:
        found: LogStart = original(self, frontier)
        wanted = Antichain.minimal(self.shape, frontier)
        for number, line in enumerate(self.lines[found.line :], found.line):
            if all(wanted.covers(time) for time in line.lower):
                return LogStart(number + 1, line.lower)
        return found

    return start


def _complete_at_equality(original: Original) -> Original:
    def take(self: ActiveEpochs[Any], frontier: Frontier) -> Any:
        return original(self, leave_out(self._shape, frontier, frontier))

    return take


def _no_hold_back(original: Original) -> Original:
    def add(self: Subscriber, partition: str, at: Any, **options: Any) -> Any:
        effects = original(self, partition, at, **options)
        self._joining = Antichain.minimal(self.shape)
        return effects

    return add


def _late_filter_too_wide(original: Original) -> Original:
    def join(self: Subscriber, partition: str, snapshot: Snapshot, *rest: Any) -> None:
        self._gate.begun(snapshot.upper)
        original(self, partition, snapshot, *rest)

    return join


def _remembered_by_its_partition(original: Original) -> Original:  # noqa: ARG001
    """What was given is forgotten when the partition that gave it has completed it."""

    def seen(self: Subscriber, future: Frontier) -> Any:
        for link in self._links.values():
            rows = link._rows
            for time in rows._rows.covered(future) if rows is not None else ():
                if not self._joining.covers(time) and self._gate.verdict(time) is None:
                    return time
        return None

    return seen


def _bug(
    name: str,
    about: str,
    owner: Any,
    attribute: str,
    change: Callable[[Any], Any],
    hunt: Callable[[], str | None] | None = None,
) -> PlantedBug:
    plant = lambda: patched(owner, attribute, change)  # noqa: E731
    return PlantedBug(f"epochs/{name}", about, plant, hunt or by_seeds("epochs", 200))


def _half_an_epoch() -> str | None:
    """The shortest story in which it shows; seeds tell it too, but only one in a few hundred."""
    subscriber = Subscriber(["p0", "p1"])
    for partition in ("p0", "p1"):
        subscriber.receive(partition, Snapshot((0,), ()))
    subscriber.receive("p0", Data(5, "p0"))
    subscriber.receive("p0", FrontierUpdate(((0, -1), (6, 1)), ((5, 1),)))
    try:
        subscriber.add_partition("p2", [5])
    except FrontierError:
        return None
    subscriber.receive("p2", Snapshot((5,), (5,)))
    (effect,) = subscriber.receive("p1", Data(5, "p1"))
    return "half of epoch 5 is given" if isinstance(effect, Dropped) else None


PLANTED = (
    _bug(
        "filter-pruned-at-equality",
        "a time leaves the filter when the frontier reaches it, not when it has passed",
        Subscriber,
        "_settle",
        _pruned_at_equality,
    ),
    _bug(
        "upper-cut-by-own-lower",
        "a publisher forgets what it has completed, though other partitions have not",
        Publisher,
        "progress",
        _upper_cut_by_own_lower,
    ),
    _bug(
        "filter-cut-by-own-lower",
        "each partition's part of the filter is pruned by its own lower frontier",
        Subscriber,
        "_begin",
        _filter_cut_by_own_lower,
    ),
    _bug(
        "lexicographic-order",
        "tuples are compared by their first difference",
        TimeShape,
        "leq",
        _first_difference,
    ),
    _bug(
        "judged-before-all-snapshots",
        "data of an early partition is judged by the snapshots there are",
        Subscriber,
        "_hold",
        _judged_at_once,
    ),
    _bug(
        "lost-connection-is-end-of-stream",
        "a subscriber cannot tell an aborted stream from a closed one",
        Subscriber,
        "_finish",
        _aborted_is_closed,
    ),
    _bug(
        "subscribers-never-removed",
        "a subscriber whose link has failed is served for ever",
        Publisher,
        "disconnect",
        _nothing,
    ),
    _bug(
        "later-subscribers-starve",
        "after an early subscriber has left, a later one gets no more data",
        Publisher,
        "data",
        _starves_later_ones,
    ),
    _bug("queue-without-bound", "a queue is never full", SubscriberQueue, "full", _never_full),
    _bug(
        "skip-in-silence",
        "a full queue loses its data and the subscriber is not told",
        SubscriberQueue,
        "_skip",
        _skips_in_silence,
    ),
    _bug(
        "skip-keeps-broken-epochs",
        "what was collected of an epoch stays when the rest of it is skipped",
        Subscriber,
        "_void",
        _nothing,
        by_seeds("epochs", 200, first=11),
    ),
    _bug(
        "any-time-is-legal",
        "a capability may be taken for a completed time",
        CountedAntichain,
        "check",
        _any_time,
    ),
    _bug(
        "frontier-as-a-set",
        "a time held twice is gone when it is let go once",
        CountedAntichain,
        "_count",
        _set_not_multiset,
    ),
    _bug(
        "resume-repeats",
        "a resumed subscription delivers what lies before its start",
        Gate,
        "verdict",
        _forgets_the_start,
    ),
    _bug(
        "resume-without-history",
        "a subscription resumes though the publisher has gone on without it",
        Gate,
        "check_history",
        _nothing,
    ),
    _bug(
        "given-by-one-is-forgotten",
        "a partition may be added at an epoch of which another gave its part and completed it",
        Subscriber,
        "_seen",
        _remembered_by_its_partition,
        _half_an_epoch,
    ),
    _bug(
        "taken-back-rows-stay",
        "what a source has taken back is given with the epoch it was in",
        Pending,
        "take_back",
        _nothing,
    ),
    _bug(
        "what-is-given-up-comes-back",
        "the rest of an epoch that did not fit is collected, and given as whole",
        Gate,
        "give_up",
        _nothing,
        by_seeds("epochs", 200, first=12),
    ),
    _bug(
        "history-from-the-marker",
        "reading begins where the frontier was reached, after data that came early",
        PartitionLog,
        "start",
        _starts_at_the_marker,
    ),
    _bug(
        "complete-at-equality",
        "an epoch counts as complete when the frontier reaches it",
        ActiveEpochs,
        "take_completed",
        _complete_at_equality,
    ),
    _bug(
        "new-partition-not-awaited",
        "data is judged before a new partition has told what had begun there",
        Subscriber,
        "add_partition",
        _no_hold_back,
    ),
    _bug(
        "new-partition-filters-the-past",
        "what had begun in a new partition is filtered also before the place where it began",
        Subscriber,
        "_join",
        _late_filter_too_wide,
        by_seeds("epochs", 200, first=33),
    ),
)
