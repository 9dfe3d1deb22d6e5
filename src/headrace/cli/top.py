"""``headrace top``: everything on one screen, drawn again as it changes, until q or Ctrl-C."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.live import Live

from headrace.catalog import Catalog
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import until_ctrl_c
from headrace.cli.top_screen import Choice, Seen, Size, keys_of, pressed, screen
from headrace.cli.values import some_seconds
from headrace.errors import HeadraceError
from headrace.node import looking
from headrace.node.observer import SHARE

EVERY_S = 1.0
INPUT_BYTES = 256

app = App(name="top", help="Streams and groups on one screen, live.", help_epilogue="")


@app.default
def top(
    *,
    every: Annotated[float, Parameter(converter=some_seconds)] = EVERY_S,
    options: Options = NONE,
) -> None:
    """Show streams, groups, lag and decisions on one screen, live.

    Looking never takes more than a tenth of a core: where there are very many groups, it looks
    less often than --every says.  Keys: ↑ and ↓ choose a group, Enter opens it, Esc goes back, s
    changes the order, space pauses, q ends.

    * `headrace top`
    * `headrace top --every 5s --catalog ./data`

    Parameters
    ----------
    every
        How often it looks: 500ms, 5s.
    """
    if not 0.2 <= every <= 3600:
        raise UsageError(f"--every {every:g}s: give 200ms to 1h")
    if options.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "headrace top needs a terminal; for one look: headrace status, for programs with --json"
        )
    until_ctrl_c()
    with options.look() as catalog:
        _run(catalog, every)


def _run(catalog: Catalog, every_s: float) -> None:
    seen, choice = Seen(), Choice()
    out = Console(highlight=False)
    drawing = Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop")
    with _keyboard() as keyboard, drawing:
        due_s = 0.0
        while not choice.over:
            now_s = time.monotonic()
            if now_s >= due_s and not choice.paused:
                _look(catalog, seen)
                cpu_s = 0.0 if seen.look is None else seen.look.cpu_s
                due_s = time.monotonic() + max(every_s, SHARE * cpu_s)
            drawing.update(screen(seen, choice, catalog.where, Size(*out.size)), refresh=True)
            wait_s = every_s if choice.paused else max(0.0, due_s - time.monotonic())
            for key in _typed(keyboard, wait_s):
                choice = pressed(choice, key, seen)


def _look(catalog: Catalog, seen: Seen) -> None:
    """One look; when the catalog is away the last one stays on the screen."""
    try:
        found = looking.look(catalog, seen.look)
    except HeadraceError as error:
        seen.away = str(error)
    else:
        seen.add(found.look, found.decisions)


@contextmanager
def _keyboard() -> Iterator[int]:
    """The terminal, with each key given as it is pressed and nothing echoed."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _typed(keyboard: int, wait_s: float) -> list[str]:
    """The keys that are pressed while there is nothing else to do."""
    ready, _, _ = select.select([keyboard], [], [], wait_s)
    if not ready:
        return []
    data = os.read(keyboard, INPUT_BYTES)
    # A terminal that is gone is at its end.
    return keys_of(data.decode(errors="replace")) if data else ["q"]
