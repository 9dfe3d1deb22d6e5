"""``headrace status``: one screen that says how everything is, and what needs a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import RenderableType
from rich.markup import escape

from headrace.cli.failures import EXIT_FAILED
from headrace.cli.group_looks import groups_table
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, table
from headrace.cli.policies import size_text
from headrace.cli.values import duration_s
from headrace.groups.findings import BEHIND_S, time_words
from headrace.groups.status import CatalogStatus
from headrace.groups.status import status as look

STREAMS_SHOWN = 50
GROUPS_SHOWN = 50
FINDINGS_SHOWN = 20

app = App(name="status", help="How everything is, and what needs a person.", help_epilogue="")


@app.default
def status(
    *,
    behind: Annotated[
        str | None, Parameter(help="A group that is further behind needs a person: 15m, 2h.")
    ] = None,
    options: Options = NONE,
) -> int:
    """Show streams, groups, pipeline and sessions, and what needs a person.

    The exit status is 1 if something does.

    * `headrace status`
    * `headrace status --behind 2h --json`
    """
    limit_s = BEHIND_S if behind is None else duration_s(behind, "--behind")
    with options.look() as catalog:
        found = catalog.read(lambda tx: look(tx, limit_s), snapshot=True)
    options.show(found, *_screen(found))
    return 0 if found.well else EXIT_FAILED


def _screen(found: CatalogStatus) -> Iterator[RenderableType]:
    if streams := found.streams:
        if len(streams) > STREAMS_SHOWN:
            busy = sorted(streams, key=lambda each: -(each.rate_events_per_s or 0.0))
            streams = tuple(busy[:STREAMS_SHOWN])
        yield table(
            ("stream", ">segments", ">events", ">size", ">events/s", "consumers"),
            (
                (
                    each.stream,
                    each.segments,
                    each.retained_events,
                    size_text(each.retained_bytes),
                    "" if each.rate_events_per_s is None else f"{each.rate_events_per_s:,.1f}",
                    ", ".join(each.consumers[:5]) + (" …" if len(each.consumers) > 5 else ""),
                )
                for each in streams
            ),
        )
        yield from _rest(found.streams, STREAMS_SHOWN, "stream ls")
    else:
        yield "there are no streams yet; make one: headrace stream create NAME --subjects 'NAME.>'"
    yield ""
    if found.groups:
        behind = sorted(
            found.groups, key=lambda each: (not each.findings, -each.lag.seconds, each.group)
        )
        yield groups_table(behind[:GROUPS_SHOWN])
        yield from _rest(behind, GROUPS_SHOWN, "group ls")
    else:
        yield "there are no groups yet"
    yield ""
    yield _pipeline_line(found)
    run = sum(each.instance is not None for each in found.sessions)
    yield f"sessions: {run} of {len(found.sessions)} run" if found.sessions else "sessions: none"
    yield _chores_line(found)
    yield ""
    person = [each for each in found.findings if each.needs_person]
    yield "all is well" if found.well else f"{counted(len(person), 'finding')}:"
    shown = sorted(found.findings, key=lambda each: not each.needs_person)
    for each in shown[:FINDINGS_SHOWN]:
        mark = "[red]![/red]" if each.needs_person else "·"
        yield f"{mark} {escape(str(each))}"
    yield from _rest(shown, FINDINGS_SHOWN, "status --json")


def _rest(all_of_them: Sequence[object], shown: int, command: str) -> Iterator[str]:
    if len(all_of_them) > shown:
        yield f"and {len(all_of_them) - shown:,} more: headrace {command}"


def _pipeline_line(found: CatalogStatus) -> str:
    line = found.pipeline
    if line.owner is None:
        need = "" if line.wanted else ", and nothing needs one"
        return f"pipeline: none runs{need}"
    failing = f", {line.failing} of them failing" if line.failing else ""
    return f"pipeline: led by {escape(line.owner)}, {counted(line.jobs, 'job')}{failing}"


def _chores_line(found: CatalogStatus) -> str:
    told = []
    for each in found.chores:
        if each.done_at is None:
            told.append(f"{each.chore} never")
            continue
        ago = time_words((found.seen_at - each.done_at).total_seconds())
        failed = f" and failed: {escape(each.note)}" if each.failed else ""
        told.append(f"{each.chore} {ago} ago{failed}")
    return f"last done: {', '.join(told)}"
