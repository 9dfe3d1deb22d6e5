"""What the benchmarks share: a result with its target, rounds that alternate, and the table.

Machines are shared and noisy, so a figure is a ratio against a floor or a peer measured in the
same run: both sides take turns, and the median of the rounds' ratios counts.  Every figure is also
shown against the one in ``baseline.json``, which is committed; a line that is worse than that by
more than ``WORSE_MAX`` is marked.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
BASELINE = Path(__file__).parent / "baseline.json"
WORSE_MAX = 0.10


def folder() -> str:
    """A place for a new catalog."""
    return tempfile.mkdtemp(prefix="bench-") + "/data"


class Result(msgspec.Struct, frozen=True):
    """One figure; ``ok`` is None when there is no target for it."""

    name: str
    value: float
    unit: str
    target: str = ""
    ok: bool | None = None
    detail: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all other figures."""
        return self.name, self.unit

    @property
    def more_is_better(self) -> bool:
        """By its target; without one, rates are to be high and all else low."""
        if self.target:
            return self.target.startswith(">=")
        return self.unit.endswith("/s")

    def gain(self, before: Result) -> float:
        """By which part it is better than it was; below 0 it is worse."""
        more = self.value - before.value if self.more_is_better else before.value - self.value
        if not more:
            return 0.0
        return more / abs(before.value) if before.value else more * float("inf")


def at_least(name: str, value: float, least: float, unit: str, detail: str = "") -> Result:
    return Result(name, value, unit, f">= {least:g}", value >= least, detail)


def at_most(name: str, value: float, most: float, unit: str, detail: str = "") -> Result:
    return Result(name, value, unit, f"<= {most:g}", value <= most, detail)


def ratio_of_rounds(
    floor: Callable[[], float], ours: Callable[[], float], rounds: int
) -> tuple[float, float, float]:
    """(median ratio, median floor, median ours) of two rates, measured in turn."""
    found = rounds_of(floor, ours, rounds)
    floors, rates = zip(*found, strict=True)
    ratio = statistics.median(rate / base for base, rate in found)
    return ratio, statistics.median(floors), statistics.median(rates)


def rounds_of(
    floor: Callable[[], float], ours: Callable[[], float], rounds: int
) -> list[tuple[float, float]]:
    """(floor, ours) of each round, measured in turn."""
    found = []
    for number in range(rounds):
        # Whoever goes first in a round is first half of the time.
        if number % 2:
            rate, base = ours(), floor()
        else:
            base, rate = floor(), ours()
        found.append((base, rate))
    return found


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def baseline(path: Path = BASELINE) -> dict[tuple[str, str], Result]:
    """The committed figures by their keys; none where there is no such file."""
    if not path.exists():
        return {}
    return {found.key: found for found in msgspec.json.decode(path.read_bytes(), type=list[Result])}


def against(result: Result, before: Result | None) -> str:
    """A figure against its baseline, as the table shows it."""
    if before is None:
        return "new"
    gain = result.gain(before)
    shown = f"{result.value / before.value:.2f} x" if before.value else "was 0"
    if gain < -WORSE_MAX:
        return f"[red]{shown} worse[/]"
    return f"[green]{shown} better[/]" if gain > WORSE_MAX else shown


def show(results: Iterable[Result]) -> None:
    table = Table(title="Headrace benchmarks")
    for column in ("benchmark", "value", "unit", "target", "", "baseline", "", "detail"):
        table.add_column(column, justify="right" if column in ("value", "baseline") else "left")
    known = baseline()
    for result in results:
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[result.ok]
        before = known.get(result.key)
        table.add_row(
            result.name,
            _number(result.value),
            result.unit,
            result.target,
            mark,
            "" if before is None else _number(before.value),
            against(result, before),
            result.detail,
        )
    Console(width=None if Console().is_terminal else 190).print(table)


def _number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def save(results: Iterable[Result]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps([msgspec.to_builtins(result) for result in results], indent=1))
    return path
