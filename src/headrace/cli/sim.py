"""``headrace sim``: run the protocols in a world where everything goes wrong.

Exit status: 0 when every promise held (or every planted bug was found), 1 when not, 2 when the
command itself makes no sense.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from cyclopts import App, Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.cli.failures import status_of
from headrace.cli.output import console, print_json, progress, table, tell
from headrace.errors import HeadraceError, InvalidInputError
from headrace.sim.exhaustive import Explored, explore
from headrace.sim.faults import Fault, parse_faults
from headrace.sim.fleet import parse_seeds, run_fleet
from headrace.sim.planted import Hunted, hunt_planted, planted_bugs
from headrace.sim.runner import RunResult, Summary, replay, shrink
from headrace.sim.scenarios import scenario_named, scenarios

app = App(name="sim", help="Run the protocols in a world where everything goes wrong.")

HELD = "all promises held"


@Parameter(name="*")
@dataclass(frozen=True)
class Conditions:
    """What a run meets beside its seed."""

    steps: Annotated[
        int | None, Parameter(help="How many steps go by with faults before the world heals.")
    ] = None
    faults: Annotated[
        str,
        Parameter(help="Kinds of fault, comma-separated; all, none, or -drop to leave one out."),
    ] = "all"

    @property
    def settings(self) -> RunSettings:
        _check_range("--steps", self.steps, 10_000_000)
        return {"steps": self.steps, "faults": parse_faults(self.faults)}


USUAL = Conditions()


class RunSettings(TypedDict):
    steps: int | None
    faults: frozenset[Fault]


@app.default
def sim(
    scenario: str = "all",
    /,
    *,
    seeds: str = "0..199",
    conditions: Conditions = USUAL,
    replay: Annotated[int | None, Parameter(name="--replay")] = None,
    planted: bool = False,
    exhaustive: bool = False,
    depth: Annotated[
        int | None, Parameter(help="How many events deep the exhaustive check goes.")
    ] = None,
    jobs: Annotated[int, Parameter(help="How many processes to use, 1 or 2.")] = 2,
    json: Annotated[bool, Parameter(help="Print JSON instead of tables.")] = False,
) -> None:
    """Run scenarios over many seeds and stop at the first broken promise.

    Example: `headrace sim shared --seeds 0..999 --faults -drop`

    Example: `headrace sim readers --replay 42`

    Parameters
    ----------
    scenario
        A scenario by name, or all.
    seeds
        Which seeds to run, A..B (both included) or one number.
    replay
        Tell the whole history of one seed; the same to the byte every time.
    planted
        Plant bugs on purpose, of one scenario or of all, and see that each is found.
    exhaustive
        Visit every reachable state of small groups, shared and partitioned.
    """
    try:
        if sum((planted, exhaustive, replay is not None)) > 1:
            raise InvalidInputError("choose one of --planted, --exhaustive and --replay")
        if planted:
            code = _planted(scenario, json)
        elif exhaustive:
            code = _exhaustive(depth, json)
        elif replay is not None:
            code = _replay(_chosen(scenario), replay, conditions.settings)
        else:
            settings = conditions.settings
            code = _seeds(_chosen(scenario), parse_seeds(seeds), settings, jobs, json)
    except HeadraceError as error:
        tell(f"headrace sim: {error}")
        code = status_of(error)
    raise SystemExit(code)


def _chosen(scenario: str) -> list[str]:
    return list(scenarios()) if scenario == "all" else [scenario_named(scenario).name]


def _check_range(option: str, given: int | None, most: int) -> None:
    if given is not None and not 1 <= given <= most:
        raise InvalidInputError(f"{option} is {given}; it must be 1 to {most}")


def _bar(json: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    note = TextColumn("{task.fields[note]}")
    return progress(*columns, TimeRemainingColumn(), note, quiet=json)


# --- seeds ---


def _seeds(chosen: list[str], seeds: range, settings: RunSettings, jobs: int, json: bool) -> int:
    summaries: list[Summary] = []
    failure: RunResult | None = None
    with _bar(json) as bar:
        for name in chosen:
            summary = Summary(name)
            summaries.append(summary)
            task = bar.add_task(name, total=len(seeds), note="")
            for result in run_fleet(name, seeds, jobs=jobs, **settings):
                summary.add(result)
                bar.update(task, advance=1, note=f"{summary.steps:,} steps")
                if not result.ok:
                    failure = result
                    break
            if failure is not None:
                break
    if json:
        print_json({"summaries": [_as_data(summary) for summary in summaries]})
    else:
        _print_summaries(summaries)
    if failure is None:
        return 0
    _print_failure(failure, settings)
    return 1


def _as_data(summary: Summary) -> dict[str, Any]:
    return {
        "scenario": summary.scenario,
        "seeds": summary.seeds,
        "steps": summary.steps,
        "virtual_s": summary.virtual_ms // 1000,
        "faults": dict(sorted(summary.faults.items())),
        "reached": dict(sorted(summary.reached.items())),
        "failures": summary.failures,
    }


def _print_summaries(summaries: list[Summary]) -> None:
    rows = (
        (
            s.scenario,
            s.seeds,
            s.steps,
            f"{s.virtual_ms / 3_600_000:.1f}",
            sum(s.faults.values()),
            "VIOLATION" if s.failures else HELD,
        )
        for s in summaries
    )
    headings = ("scenario", ">seeds", ">steps", ">virtual hours", ">faults", "result")
    screen = console()
    screen.print(table(headings, rows))
    for s in summaries:
        for title, counts in (("faults", s.faults), ("states reached", s.reached)):
            if counts:
                listed = ", ".join(f"{name} {n:,}" for name, n in sorted(counts.items()))
                screen.print(f"[bold]{s.scenario}[/bold] {title}: {listed}")


def _print_failure(failure: RunResult, settings: RunSettings) -> None:
    scenario = scenario_named(failure.scenario)
    shrunk = shrink(scenario, failure.seed, **settings)
    steps, faults = settings["steps"], settings["faults"]
    options = f" --steps {steps}" if steps is not None else ""
    if faults != frozenset(Fault):
        options += f" --faults {','.join(sorted(faults)) or 'none'}"
    tell(
        f"\nVIOLATION of {failure.invariant!r} in {failure.scenario}\n"
        f"seed {failure.seed}: {failure.detail}\n"
        f"shortened in {shrunk.runs} runs from {shrunk.faults_struck} faults to "
        f"{shrunk.faults_kept} ({', '.join(shrunk.faults) or 'none'}): {shrunk.result.detail}"
    )
    for line in shrunk.excerpt():
        tell(line)
    tell(f"repeat: headrace sim {failure.scenario} --replay {failure.seed}{options}")


def _replay(chosen: list[str], seed: int, settings: RunSettings) -> int:
    if len(chosen) != 1:
        raise InvalidInputError(f"--replay needs one scenario: {', '.join(chosen)}")
    if seed < 0:
        raise InvalidInputError(f"--replay is {seed}; a seed is 0 or more")
    result, history = replay(scenario_named(chosen[0]), seed, **settings)
    sys.stdout.write(history)
    return 0 if result.ok else 1


# --- planted bugs and the exhaustive check ---


def _planted(scenario: str, json: bool) -> int:
    bugs = planted_bugs()
    if scenario != "all":
        prefixes = tuple(f"{scenario_named(scenario).name}{mark}" for mark in "/:")
        bugs = tuple(bug for bug in bugs if bug.name.startswith(prefixes))
    results: list[Hunted] = []
    with _bar(json) as bar:
        task = bar.add_task("planted bugs", total=len(bugs), note="")
        for hunted in hunt_planted(bugs):
            results.append(hunted)
            bar.update(task, advance=1, note=hunted.bug.name)
            if not json:
                finding = hunted.finding or "NOT FOUND"
                bar.console.file.flush()
                print(f"{hunted.bug.name}: {hunted.bug.about}\n    {finding}")
    found = sum(1 for hunted in results if hunted.finding is not None)
    if json:
        bugs_found = [
            {"name": h.bug.name, "about": h.bug.about, "finding": h.finding} for h in results
        ]
        print_json({"bugs": bugs_found, "found": found, "total": len(bugs)})
    else:
        print(f"found {found} of {len(bugs)}")
    return 0 if found == len(bugs) and bugs else 1


def _exhaustive(depth: int | None, json: bool) -> int:
    _check_range("--depth", depth, 100)
    with _bar(json) as bar:
        task = bar.add_task("exhaustive", total=None, note="")

        def told(level: int, states: int) -> None:
            bar.update(task, completed=level, note=f"depth {level}, {states:,} states")

        explored: list[Explored] = explore(depth=depth, progress=told)
    if json:
        print_json(explored)
    else:
        rows = ((e.model, e.depth, e.states, e.transitions, e.violation or HELD) for e in explored)
        headings = ("model", ">depth", ">states", ">transitions", "result")
        console().print(table(headings, rows))
        for e in explored:
            for line in e.path:
                tell(line)
    return 1 if any(e.violation for e in explored) else 0


if __name__ == "__main__":
    app()
