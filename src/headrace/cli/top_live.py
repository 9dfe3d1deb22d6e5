"""The loop of ``headrace top``: look, draw, wait for a key."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from headrace.catalog import Catalog
from headrace.cli.top_screen import Choice, Seen, Size, keys_of, pressed, screen
from headrace.errors import HeadraceError
from headrace.node import looking
from headrace.node.observer import SHARE

INPUT_BYTES = 256


def run(catalog: Catalog, every_s: float) -> None:
    """Show the catalog until the person at the keyboard has enough."""
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
