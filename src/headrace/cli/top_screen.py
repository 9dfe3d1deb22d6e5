"""The screen of ``headrace top``: what is on it, and what a key does to it.

Nothing here reads a clock, a catalog or a terminal.  ``seen`` takes in a look, ``pressed`` takes a
key, ``screen`` draws; the loop around them is in ``top``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, TypeVar

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from headrace.catalog.streams import Stream
from headrace.cli.group_looks import (
    decision_line,
    events_text,
    finding_text,
    head,
    members_table,
    units_table,
)
from headrace.cli.output import Cell, counted, table
from headrace.cli.policies import size_text
from headrace.groups.decisions import Decision
from headrace.groups.findings import moment_words, time_words
from headrace.groups.shapes import GroupView
from headrace.node.history import GROUP, STREAM_FIGURES, History
from headrace.node.lines import worst_first
from headrace.node.shapes import Look

TREND = 20
"""Looks that a trend shows."""
BARS = "▁▂▃▄▅▆▇█"
DECISIONS_KEPT = 1_000
FINDINGS_SHARE, STREAMS_SHARE = 8, 3
"""Findings and streams get one line in so many of those that are left."""
NARROW, SLIM = 110, 60
"""Columns of a terminal below which the trends, and then all but the lag, are left out."""
KEYS = "q quit · ↑ ↓ choose · Enter open · Esc back · space pause · s order: "


T = TypeVar("T")


class Sorting(Enum):
    """How groups are listed."""

    WORST = "worst first"
    LAG = "by events behind"
    RATE = "by events acked"
    NAME = "by name"


@dataclass(frozen=True)
class Choice:
    """What the person at the keyboard has chosen."""

    order: Sorting = Sorting.WORST
    group: str | None = None
    """The group under the cursor."""
    opened: bool = False
    """Whether that group fills the screen."""
    paused: bool = False
    over: bool = False


@dataclass
class Seen:
    """The last look, and what became of figures since the screen was opened."""

    look: Look | None = None
    away: str | None = None
    """Why the catalog cannot be read, if it cannot."""
    history: History = field(default_factory=History)
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=DECISIONS_KEPT))
    trends: dict[tuple[str, str], deque[float]] = field(default_factory=dict)

    def add(self, look: Look, decisions: Iterable[Decision]) -> None:
        """Take in a look and what was decided since the one before."""
        self.look, self.away = look, None
        self.history.add(look)
        self.decisions.extend(decisions)
        figures = {(GROUP, name): float(each.lag.events) for name, each in look.groups.items()}
        for name in look.streams:
            figures[STREAM_FIGURES, name] = self.rate(STREAM_FIGURES, name)
        for key, figure in figures.items():
            self.trends.setdefault(key, deque(maxlen=TREND)).append(figure)
        for key in self.trends.keys() - figures.keys():
            del self.trends[key]

    def rate(self, what: str, name: str) -> float:
        """Events a second that a group acks, or a stream gets."""
        return self.history.rates.get((what, name), 0.0)

    def trend(self, what: str, name: str) -> str:
        """The last figures as a line of bars."""
        return sparkline(self.trends.get((what, name), ()))


def sparkline(figures: Iterable[float]) -> str:
    """Figures as bars, the greatest as high as a line.

    >>> sparkline([0, 1, 2, 4])
    '▁▃▅█'
    """
    found = list(figures)
    top = max(found, default=0.0)
    if top <= 0:
        return BARS[0] * len(found)
    return "".join(BARS[round(figure / top * (len(BARS) - 1))] for figure in found)


def ordered(seen: Seen, order: Sorting) -> list[GroupView]:
    """The groups as they are listed."""
    look = seen.look
    groups = [] if look is None else list(look.groups.values())
    match order:
        case Sorting.WORST:
            return worst_first(groups)
        case Sorting.LAG:
            return sorted(groups, key=lambda each: (-each.lag.events, each.group))
        case Sorting.RATE:
            return sorted(groups, key=lambda each: (-seen.rate(GROUP, each.group), each.group))
        case Sorting.NAME:
            return sorted(groups, key=lambda each: each.group)


def pressed(choice: Choice, key: str, seen: Seen) -> Choice:
    """What a key does; one that means nothing changes nothing."""
    match key:
        case "q":
            return replace(choice, over=True)
        case "esc":
            return replace(choice, opened=False) if choice.opened else replace(choice, over=True)
        case " ":
            return replace(choice, paused=not choice.paused)
        case "s":
            orders = list(Sorting)
            following = orders[(orders.index(choice.order) + 1) % len(orders)]
            return replace(choice, order=following)
        case "up" | "k":
            return _moved(choice, -1, seen)
        case "down" | "j":
            return _moved(choice, 1, seen)
        case "enter":
            chosen = choice.group or next((g.group for g in ordered(seen, choice.order)), None)
            return replace(choice, group=chosen, opened=chosen is not None)
        case _:
            return choice


def _moved(choice: Choice, by: int, seen: Seen) -> Choice:
    names = [each.group for each in ordered(seen, choice.order)]
    if not names:
        return replace(choice, group=None)
    if choice.group not in names:
        return replace(choice, group=names[0 if by > 0 else -1])
    at = names.index(choice.group) + by
    return replace(choice, group=names[min(max(at, 0), len(names) - 1)])


class Size(NamedTuple):
    """How large the terminal is."""

    columns: int
    lines: int


def screen(seen: Seen, choice: Choice, place: str, size: Size) -> RenderableType:
    """What is shown on a terminal."""
    look = seen.look
    if look is None:
        return Group(
            f"[bold]headrace[/bold] {escape(place)}", seen.away or "looking …", "", "q quit"
        )
    opened = look.groups.get(choice.group or "") if choice.opened else None
    top = _head(seen, look, choice, place, max(1, size.lines // FINDINGS_SHARE))
    left = Size(size.columns, max(3, size.lines - len(top) - 2))
    body = _everything(seen, look, choice, left) if opened is None else _one(seen, opened, left)
    return Group(
        *top, *body, Rule(style="dim"), Text(KEYS + choice.order.value, style="dim", no_wrap=True)
    )


def _head(
    seen: Seen, look: Look, choice: Choice, place: str, findings: int
) -> list[RenderableType]:
    appended = sum(seen.rate(STREAM_FIGURES, name) for name in look.streams)
    acked = sum(seen.rate(GROUP, name) for name in look.groups)
    state = "[yellow]paused[/yellow]" if choice.paused else moment_words(look.seen_us)
    first = (
        f"[bold]headrace[/bold] {escape(place)}  {state}  {size_text(look.catalog_bytes)}  "
        f"{counted(len(look.streams), 'stream')}  {counted(len(look.groups), 'group')}  "
        f"in {appended:,.0f}/s  acked {acked:,.0f}/s"
    )
    found: list[RenderableType] = [_line(first)]
    if seen.away is not None:
        found.append(_line(f"[red]the catalog cannot be read now:[/red] {escape(seen.away)}"))
    wanting = sorted(look.findings, key=lambda each: not each.needs_person)
    for each in wanting[:findings]:
        mark = "[red]![/red]" if each.needs_person else "·"
        found.append(_line(f"{mark} {escape(str(each))}"))
    if len(wanting) > findings:
        found.append(f"  and {len(wanting) - findings:,} more: headrace status")
    return [*found, ""]


def _everything(seen: Seen, look: Look, choice: Choice, size: Size) -> list[RenderableType]:
    """Groups, streams and the last decisions, in as many lines as there are."""
    streams = min(len(look.streams), max(1, size.lines // STREAMS_SHARE))
    groups = min(len(look.groups), max(1, size.lines - streams - 5))
    decided = size.lines - streams - groups - 4
    found: list[RenderableType] = [_groups(seen, choice, Size(size.columns, groups))]
    if not look.groups:
        found = ["there are no groups yet; make one: headrace group elastic create --help"]
    found += ["", _streams(seen, look, Size(size.columns, streams))]
    if decided > 1 and seen.decisions:
        latest = list(seen.decisions)[-(decided - 1) :]
        found += ["", *(_line(escape(f"{one.group} {decision_line(one)}")) for one in latest)]
    return found


def _groups(seen: Seen, choice: Choice, size: Size) -> Table:
    every = ordered(seen, choice.order)
    names = [each.group for each in every]
    at = names.index(choice.group) if choice.group in names else 0
    first = max(0, min(at - size.lines // 2, len(every) - size.lines))
    shown = every[first : first + size.lines]
    more = len(every) - len(shown)
    columns: list[tuple[str, int, Callable[[GroupView], Cell]]] = [
        (f"group{f' ({more:,} more)' if more else ''}", 0, lambda each: each.group),
        ("kind", NARROW, lambda each: each.kind),
        ("members", SLIM, lambda each: f"{each.members_active} of {each.members_wanted}"),
        (">behind", 0, lambda each: events_text(each.lag)),
        (">for", 0, lambda each: time_words(each.lag.seconds) if each.lag.events else ""),
        (">acked/s", SLIM, lambda each: f"{seen.rate(GROUP, each.group):,.0f}"),
        ("behind lately", NARROW, lambda each: _bars(seen.trend(GROUP, each.group))),
        ("finding", SLIM, lambda each: Text(finding_text(each.findings), style="red")),
    ]
    made = _fitted(columns, shown, size)
    if choice.group in names:
        made.rows[at - first].style = "reverse"
    return made


def _streams(seen: Seen, look: Look, size: Size) -> RenderableType:
    if not look.streams:
        return "there are no streams yet; make one: headrace stream create NAME --subjects 'NAME.>'"
    rates = {name: seen.rate(STREAM_FIGURES, name) for name in look.streams}
    every = sorted(look.streams.values(), key=lambda each: (-rates[each.name], each.name))
    more = len(every) - size.lines
    columns: list[tuple[str, int, Callable[[Stream], Cell]]] = [
        (f"stream{f' ({more:,} more)' if more > 0 else ''}", 0, lambda each: each.name),
        (">segments", SLIM, lambda each: len(each.open_segments)),
        (">events", 0, lambda each: sum(segment.events for segment in each.segments)),
        (">size", SLIM, lambda each: size_text(sum(s.retained_bytes for s in each.segments))),
        (">in/s", 0, lambda each: f"{rates[each.name]:,.0f}"),
        ("in lately", SLIM, lambda each: _bars(seen.trend(STREAM_FIGURES, each.name))),
    ]
    return _fitted(columns, every[: size.lines], size)


def _fitted(
    columns: Sequence[tuple[str, int, Callable[[T], Cell]]], rows: Iterable[T], size: Size
) -> Table:
    """A table of the columns (heading, least width of a terminal, cell) that fit."""
    wanted = [each for each in columns if size.columns >= each[1]]
    made = table(
        [heading for heading, _, _ in wanted],
        ([cell(row) for _, _, cell in wanted] for row in rows),
    )
    _one_line_each(made)
    return made


def _bars(text: str) -> Text:
    return Text(text, style="cyan", no_wrap=True)


def _one(seen: Seen, group: GroupView, size: Size) -> list[RenderableType]:
    """One group: who is in it, what each unit is at, what was decided."""
    found: list[RenderableType] = [
        _line(head(group)),
        _line(
            f"acks {seen.rate(GROUP, group.group):,.0f}/s  behind lately "
            f"[cyan]{seen.trend(GROUP, group.group)}[/cyan]"
        ),
        "",
    ]
    left = max(1, (size.lines - 9) // 3)
    members = group.members[:left]
    furthest = sorted(group.units, key=lambda unit: (-unit.events, unit.unit))[:left]
    for shown, every, what in (
        (members_table(members), group.members, "member"),
        (units_table(furthest), group.units, "unit"),
    ):
        _one_line_each(shown)
        found.append(shown)
        if len(every) > left:
            found.append(f"and {counted(len(every) - left, f'more {what}')}")
        found.append("")
    own = [one for one in seen.decisions if one.group == group.group][-left:]
    return [*found, *(_line(escape(decision_line(one))) for one in own)]


def _one_line_each(made: Table) -> None:
    for column in made.columns:
        column.no_wrap = True
        column.overflow = "ellipsis"


def _line(markup: str) -> Text:
    """One line; what does not fit is cut."""
    made = Text.from_markup(markup)
    made.no_wrap = True
    made.overflow = "ellipsis"
    return made


def keys_of(data: Sequence[str] | str) -> list[str]:
    """What was typed, as the names of keys.

    >>> keys_of("jq"), keys_of(chr(27) + "[A"), keys_of(chr(27))
    (['j', 'q'], ['up'], ['esc'])
    """
    text = "".join(data)
    found = []
    while text:
        for typed, name in _TYPED.items():
            if text.startswith(typed):
                found.append(name)
                text = text[len(typed) :]
                break
        else:
            found.append(text[0])
            text = text[1:]
    return found


_TYPED = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b": "esc",
    "\r": "enter",
    "\n": "enter",
}
