"""Planted bugs of stored streams of epochs: in the ledger, its transaction, and the replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.epochs import TakeBack
from headrace.epochs.core import kept, ledger
from headrace.epochs.core.feed import LineFeed
from headrace.epochs.core.fronts import Front
from headrace.epochs.core.lines import Line
from headrace.sim.planted import PlantedBug, by_seeds, patched
from headrace.sim.scenarios.epochs_stored import StoredStream


def _nothing(original: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG001
    return lambda *args, **kwargs: None  # noqa: ARG005


def _line_apart(original: Callable[..., Any]) -> Callable[..., Any]:
    """Rows and ledger are stored, and the line in a transaction of its own, which may be lost."""

    def store(self: StoredStream, decided: Any, placed: Any) -> None:
        line = decided.line
        original(self, decided, placed)
        if line is not None and line.spans and self.world.rng.random() < 0.05:
            # As a line that tells of nothing: the numbers go on.
            self.lines[-1] = Line(line.publisher, line.token, line.lower, line.first_open)

    return store


def _first_open_too_late(original: Callable[..., Any]) -> Callable[..., Any]:
    def after(shape: Any, known: Any, number: int, times: Any, lower: Any) -> Any:
        fronts = original(shape, known, number, times, lower)
        return tuple(Front(number, front.maximal) for front in fronts[:1])

    return after


def _never(original: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG001
    return lambda *args: False  # noqa: ARG005


def _always(original: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG001
    return lambda *args: True  # noqa: ARG005


def _taken_back_in_no_line(original: Callable[..., Any]) -> Callable[..., Any]:
    def messages(self: LineFeed, number: int, line: Line) -> Any:
        return [one for one in original(self, number, line) if not isinstance(one, TakeBack)]

    return messages


def _bug(
    name: str,
    about: str,
    owner: Any,
    attribute: str,
    change: Callable[[Any], Any],
    first: int = 0,
) -> PlantedBug:
    plant = lambda: patched(owner, attribute, change)  # noqa: E731
    return PlantedBug(f"epochs/{name}", about, plant, by_seeds("epochs", 200, first=first))


def _as_before(original: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG001
    return lambda shape, since, gone: since  # noqa: ARG005


PLANTED = (
    _bug(
        "line-outside-the-transaction",
        "rows are stored, and the line that tells of them is lost",
        StoredStream,
        "store",
        _line_apart,
        first=23,
    ),
    _bug(
        "first-open-too-late",
        "a line names itself as the first that holds rows of an open epoch",
        ledger,
        "after_line",
        _first_open_too_late,
    ),
    _bug(
        "stale-token-accepted",
        "a frozen publisher that was replaced goes on publishing",
        StoredStream,
        "is_fenced",
        _never,
    ),
    _bug(
        "late-row-accepted",
        "rows are taken at a time that the publisher does not hold any more",
        ledger,
        "_check_times",
        _nothing,
    ),
    _bug(
        "joined-before-the-frontier",
        "a publisher joins at a time that is complete",
        ledger,
        "not_before",
        _always,
    ),
    _bug(
        "trimmed-rows-count-as-there",
        "a start is taken although rows from there on were trimmed",
        kept,
        "_without",
        _as_before,
    ),
    _bug(
        "taken-back-rows-come-again",
        "whoever replays does not hear that rows were taken back",
        LineFeed,
        "messages",
        _taken_back_in_no_line,
    ),
)
