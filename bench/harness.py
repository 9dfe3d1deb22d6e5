"""What the benchmarks share: a result with its target, rounds that alternate, and the table.

Machines are shared and noisy, so a figure is a ratio against a floor or a peer measured in the
same run: both sides take turns, and the median of the rounds' ratios counts.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


class Result(msgspec.Struct, frozen=True):
    """One figure; ``ok`` is None when there is no target for it."""

    name: str
    value: float
    unit: str
    target: str = ""
    ok: bool | None = None
    detail: str = ""


def at_least(name: str, value: float, least: float, unit: str, detail: str = "") -> Result:
    return Result(name, value, unit, f">= {least:g}", value >= least, detail)


def at_most(name: str, value: float, most: float, unit: str, detail: str = "") -> Result:
    return Result(name, value, unit, f"<= {most:g}", value <= most, detail)


def ratio_of_rounds(
    floor: Callable[[], float], ours: Callable[[], float], rounds: int
) -> tuple[float, float, float]:
    """(median ratio, median floor, median ours) of two rates, measured in turn."""
    floors, rates, ratios = [], [], []
    for number in range(rounds):
        # Whoever goes first in a round is first half of the time.
        if number % 2:
            rate, base = ours(), floor()
        else:
            base, rate = floor(), ours()
        floors.append(base)
        rates.append(rate)
        ratios.append(rate / base)
    return statistics.median(ratios), statistics.median(floors), statistics.median(rates)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def show(results: Iterable[Result]) -> None:
    table = Table(title="Headrace benchmarks")
    for column in ("benchmark", "value", "unit", "target", "", "detail"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for result in results:
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[result.ok]
        value = f"{result.value:,.3g}" if abs(result.value) < 1000 else f"{result.value:,.0f}"
        table.add_row(result.name, value, result.unit, result.target, mark, result.detail)
    Console(width=None if Console().is_terminal else 160).print(table)


def save(results: Iterable[Result]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps([msgspec.to_builtins(result) for result in results], indent=1))
    return path
