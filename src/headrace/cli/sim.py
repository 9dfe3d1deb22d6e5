"""``headrace sim``: run the protocols in a world where everything goes wrong.

Exit status: 0 when every promise held (or every planted bug was found), 1 when not, 2 when the
command itself makes no sense.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headrace.errors import HeadraceError, InvalidInputError
from headrace.sim.exhaustive import Explored, explore
from headrace.sim.faults import Fault, parse_faults
from headrace.sim.fleet import parse_seeds, run_fleet
from headrace.sim.planted import Hunted, hunt_planted, planted_bugs
from headrace.sim.runner import RunResult, Summary, replay, shrink
from headrace.sim.scenarios import scenario_named, scenarios

app = App(name="sim", help="Run the protocols in a world where everything goes wrong.")


@app.default
def sim(
    scenario: str = "all",
    /,
    *,
    seeds: str = "0..199",
    steps: int | None = None,
    faults: str = "all",
    replay: Annotated[int | None, Parameter(name="--replay")] = None,
    planted: bool = False,
    exhaustive: bool = False,
    depth: int | None = None,
    jobs: int = 2,
    json: Annotated[bool, Parameter(name="--json")] = False,
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
    steps
        How many steps go by with faults before the world heals.
    faults
        Kinds of fault, comma-separated; all, none, or -drop to leave one out.
    replay
        Tell the whole history of one seed; the same to the byte every time.
    planted
        Plant bugs on purpose, of one scenario or of all, and see that each is found.
    exhaustive
        Visit every reachable state of a small shared group.
    depth
        How many events deep the exhaustive check goes.
    jobs
        How many processes to use, 1 or 2.
    json
        Print JSON instead of tables.
    """
    try:
        code = _run(scenario, seeds, steps, faults, replay, planted, exhaustive, depth, jobs, json)
    except InvalidInputError as error:
        print(f"headrace sim: {error}", file=sys.stderr)
        code = 2
    except HeadraceError as error:
        print(f"headrace sim: {error}", file=sys.stderr)
        code = 1
    raise SystemExit(code)


def _run(
    scenario: str,
    seeds: str,
    steps: int | None,
    faults: str,
    replay_seed: int | None,
    planted: bool,
    exhaustive: bool,
    depth: int | None,
    jobs: int,
    json: bool,
) -> int:
    if sum((planted, exhaustive, replay_seed is not None)) > 1:
        raise InvalidInputError("choose one of --planted, --exhaustive and --replay")
    if steps is not None and not 1 <= steps <= 10_000_000:
        raise InvalidInputError(f"--steps is {steps}; it must be 1 to 10000000")
    if depth is not None and not 1 <= depth <= 100:
        raise InvalidInputError(f"--depth is {depth}; it must be 1 to 100")
    if planted:
        return _planted(scenario, json)
    if exhaustive:
        return _exhaustive(depth, json)
    kinds = parse_faults(faults)
    chosen = list(scenarios()) if scenario == "all" else [scenario_named(scenario).name]
    if replay_seed is not None:
        return _replay(chosen, replay_seed, steps, kinds)
    return _seeds(chosen, parse_seeds(seeds), steps, kinds, jobs, json)


def _bar(json: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
        disable=json or not sys.stderr.isatty(),
    )


def _print_json(value: Any) -> None:
    print(msgspec.json.encode(value).decode())


# --- seeds ---


def _seeds(
    chosen: list[str],
    seeds: range,
    steps: int | None,
    kinds: frozenset[Fault],
    jobs: int,
    json: bool,
) -> int:
    summaries: list[Summary] = []
    failure: RunResult | None = None
    with _bar(json) as bar:
        for name in chosen:
            summary = Summary(name)
            summaries.append(summary)
            task = bar.add_task(name, total=len(seeds), note="")
            for result in run_fleet(name, seeds, steps=steps, faults=kinds, jobs=jobs):
                summary.add(result)
                bar.update(task, advance=1, note=f"{summary.steps:,} steps")
                if not result.ok:
                    failure = result
                    break
            if failure is not None:
                break
    if json:
        _print_json({"summaries": [_as_data(summary) for summary in summaries]})
    else:
        _print_summaries(summaries)
    if failure is None:
        return 0
    _print_failure(failure, steps, kinds)
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
    console = Console()
    table = Table(title="simulation")
    table.add_column("scenario")
    for heading in ("seeds", "steps", "virtual hours", "faults"):
        table.add_column(heading, justify="right")
    table.add_column("result")
    for s in summaries:
        verdict = "[red]VIOLATION[/red]" if s.failures else "[green]all promises held[/green]"
        hours = f"{s.virtual_ms / 3_600_000:.1f}"
        count = f"{sum(s.faults.values()):,}"
        table.add_row(s.scenario, f"{s.seeds:,}", f"{s.steps:,}", hours, count, verdict)
    console.print(table)
    for s in summaries:
        for title, counts in (("faults", s.faults), ("states reached", s.reached)):
            if counts:
                listed = ", ".join(f"{name} {n:,}" for name, n in sorted(counts.items()))
                console.print(f"[bold]{s.scenario}[/bold] {title}: {listed}")


def _print_failure(failure: RunResult, steps: int | None, kinds: frozenset[Fault]) -> None:
    scenario = scenario_named(failure.scenario)
    shrunk = shrink(scenario, failure.seed, steps=steps, faults=kinds)
    out = sys.stderr
    print(f"\nVIOLATION of {failure.invariant!r} in {failure.scenario}", file=out)
    print(f"seed {failure.seed}: {failure.detail}", file=out)
    print(
        f"shortened in {shrunk.runs} runs from {shrunk.faults_struck} faults to "
        f"{shrunk.faults_kept} ({', '.join(shrunk.faults) or 'none'}): {shrunk.result.detail}",
        file=out,
    )
    for line in shrunk.excerpt():
        print(line, file=out)
    options = f" --steps {steps}" if steps is not None else ""
    if kinds != frozenset(Fault):
        options += f" --faults {','.join(sorted(kinds)) or 'none'}"
    print(f"repeat: headrace sim {failure.scenario} --replay {failure.seed}{options}", file=out)


def _replay(chosen: list[str], seed: int, steps: int | None, kinds: frozenset[Fault]) -> int:
    if len(chosen) != 1:
        raise InvalidInputError(f"--replay needs one scenario: {', '.join(chosen)}")
    if seed < 0:
        raise InvalidInputError(f"--replay is {seed}; a seed is 0 or more")
    result, history = replay(scenario_named(chosen[0]), seed, steps=steps, faults=kinds)
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
        _print_json(
            {
                "bugs": [
                    {"name": h.bug.name, "about": h.bug.about, "finding": h.finding}
                    for h in results
                ],
                "found": found,
                "total": len(bugs),
            }
        )
    else:
        print(f"found {found} of {len(bugs)}")
    return 0 if found == len(bugs) and bugs else 1


def _exhaustive(depth: int | None, json: bool) -> int:
    with _bar(json) as bar:
        task = bar.add_task("exhaustive", total=None, note="")

        def progress(level: int, states: int) -> None:
            bar.update(task, completed=level, note=f"depth {level}, {states:,} states")

        explored: list[Explored] = explore(depth=depth, progress=progress)
    if json:
        _print_json(explored)
    else:
        table = Table(title="exhaustive check of shared groups")
        table.add_column("model")
        for heading in ("depth", "states", "transitions"):
            table.add_column(heading, justify="right")
        table.add_column("result")
        for e in explored:
            verdict = e.violation or "all promises held"
            row = (e.model, str(e.depth), f"{e.states:,}", f"{e.transitions:,}", verdict)
            table.add_row(*row)
        Console().print(table)
        for e in explored:
            for line in e.path:
                print(line, file=sys.stderr)
    return 1 if any(e.violation for e in explored) else 0


if __name__ == "__main__":
    app()
