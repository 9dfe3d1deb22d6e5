"""Planted bugs of a Spark query that is a reader; the first three read well and lose or double."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headrace.groups.readers.core import spark_batches
from headrace.groups.readers.core.spark_batches import (
    OpenSpan,
    SparkBinding,
    SparkLine,
)
from headrace.sim.planted import PlantedBug, by_seeds, patched
from headrace.sim.spark_catalog import SparkCatalog

SparkRule = Callable[..., Any]


def _binding_in_the_entry(original: SparkRule) -> SparkRule:
    """A driver whose opening was replaced finds no binding."""

    def bindings_of(self: SparkCatalog, run: Any) -> list[SparkBinding]:
        found: list[SparkBinding] = original(self, run)
        openings = {line.opening.opening for line in self.lines.values() if line.opening}
        return [binding for binding in found if binding.opening in openings]

    return bindings_of


def _settles_any_opening(original: SparkRule) -> SparkRule:
    """Spark says that it is finished, so it is acked."""

    def settle(line: SparkLine, batch: str, *, mine: Any, **more: Any) -> Any:
        any_ = mine if line.opening is None else line.opening.opening
        return original(line, batch, mine=any_, **more)

    return settle


def _opens_what_was_counted(original: SparkRule) -> SparkRule:
    def open_batch(line: SparkLine, plan: Any, **more: Any) -> SparkLine:
        unknown = msgspec.structs.replace(line, counted="")
        made: SparkLine = original(unknown, plan, **more)
        return msgspec.structs.replace(made, counted=line.counted)

    return open_batch


def _repeats_what_is_open(original: SparkRule) -> SparkRule:
    """The sink knows the number, so there is nothing to write, and nothing to say."""

    def count(bound: Any, lines: dict[str, SparkLine], recorded: Any, *more: Any) -> Any:
        seen = lines if recorded is None else {}
        return original(bound, seen, recorded, *more)

    return count


def _without_prefix(original: SparkRule) -> SparkRule:  # noqa: ARG001
    def left(plan: Any, life: int, views: Any) -> Iterable[OpenSpan]:
        for span in plan.spans:
            view = views[span.segment]
            missing = view.acked.missing(span.ranges[-1][1])
            ranges = spark_batches.intersected(span.ranges, missing)
            if view.owner == life and ranges:
                yield OpenSpan(span.segment, view.token, ranges)

    return left


def _keeps_openings(original: SparkRule) -> SparkRule:  # noqa: ARG001
    return lambda line, segments=None: line  # noqa: ARG005


def _any_token(original: SparkRule) -> SparkRule:  # noqa: ARG001
    return lambda span, views, lives: span.segment in views  # noqa: ARG005


def _opening_of_anybody(original: SparkRule) -> SparkRule:
    """A read task does not look whether its opening was replaced."""

    def bind(line: SparkLine, name: str, opening: str) -> SparkBinding:
        found = line.opening
        if found is None:
            return SparkBinding(name, opening, "")
        current = msgspec.structs.replace(found, opening=opening)
        bound: SparkBinding = original(SparkLine(current), name, opening)
        return SparkBinding(name, found.opening, bound.batch)

    return bind


def _remembers_the_last(original: SparkRule) -> SparkRule:  # noqa: ARG001
    """What was counted last is remembered, though it be older than what was counted before."""

    def with_counted(line: SparkLine, found: Any) -> SparkLine:
        settled = msgspec.structs.replace(found, settled=True)
        return msgspec.structs.replace(line, opening=settled, counted=found.batch)

    return with_counted


def _bug(
    name: str,
    about: str,
    owner: Any,
    rule: str,
    change: Callable[[SparkRule], SparkRule],
    first: int = 0,
) -> PlantedBug:
    return PlantedBug(
        name=f"spark-reader: {name}",
        about=about,
        plant=lambda: patched(owner, rule, change),
        hunt=by_seeds("spark-reader", 1000, first=first),
    )


PLANTED = (
    _bug(
        "binding in the opening",
        "the binding is part of the opening and goes with it",
        SparkCatalog, "bindings_of", _binding_in_the_entry,
    ),
    _bug(
        "any opening is settled",
        "a finished batch is acked as somebody else had opened it",
        spark_batches, "settle", _settles_any_opening,
        first=560,
    ),
    _bug(
        "counted batch opened again",
        "a batch that a sink has counted is opened again after a reset",
        spark_batches, "open_batch", _opens_what_was_counted,
    ),
    _bug(
        "counted batch repeated",
        "a batch that was counted, reset and opened again passes for a repeat",
        spark_batches, "count", _repeats_what_is_open,
        first=111,
    ),
    _bug(
        "replay out of order",
        "a batch is replayed though something before it is missing",
        spark_batches, "_left", _without_prefix,
    ),
    _bug(
        "reset keeps openings",
        "an open batch survives a reset of the group, and acks that are taken back",
        spark_batches, "forget_opening", _keeps_openings,
        first=29,
    ),
    _bug(
        "any token",
        "spans count though their segments are somebody else's by now",
        spark_batches, "_holds", _any_token,
        first=66,
    ),
    _bug(
        "tasks of anybody",
        "a task of an opening that was replaced is bound to the newest one",
        spark_batches, "bind", _opening_of_anybody,
        first=15,
    ),
    _bug(
        "last counted remembered",
        "an older batch that is counted late hides what was counted after it",
        spark_batches, "_with_counted", _remembers_the_last,
        first=39141,
    ),
)  # fmt: skip
