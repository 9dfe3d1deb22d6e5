"""How commands speak: tables and lines for people, JSON for programs, questions and progress."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headrace.cli.failures import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress

PIPE_WIDTH = 200
"""Room for a table's lines where there is no screen to fit them on."""

Cell = str | int | Text | None


def console() -> Console:
    """Where people read results."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, dim: Sequence[bool] = ()
) -> Table:
    """A table; a heading after ``>`` stands to the right.  Numbers get commas, text is escaped."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        if heading.startswith(">"):
            made.add_column(heading[1:], justify="right", no_wrap=True)
        else:
            made.add_column(heading)
    for at, row in enumerate(rows):
        made.add_row(*map(_shown, row), style="dim" if at < len(dim) and dim[at] else "")
    return made


def _shown(cell: Cell) -> str | Text:
    match cell:
        case Text():
            return cell
        case int():
            return f"{cell:,}"
        case _:
            return escape(cell or "")


def counted(count: int, what: str, many: str = "s") -> str:
    """A number of things.

    >>> counted(1, "event"), counted(2000, "event"), counted(2, "batch", "es")
    ('1 event', '2,000 events', '2 batches')
    """
    return f"{count:,} {what}{many if count != 1 else ''}"


def confirm(what: str, about: str, *, yes: bool) -> None:
    """Ask whether to delete something, unless --yes was given; an error if the answer is no."""
    approve(
        f"delete {what} with {about}?",
        what,
        refusal=f"deleting {what} needs a yes: add --yes",
        yes=yes,
    )


def approve(question: str, what: str, *, refusal: str, yes: bool) -> None:
    """Ask, unless --yes was given; an error if the answer is no, or nobody is there to give it."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(refusal)
    tell(f"{question} [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError(f"{what} was left alone")


def until_ctrl_c() -> None:
    """Have Ctrl-C end this command, also if whoever started it ignores it.

    A shell without job control starts background jobs deaf to it; what runs until Ctrl-C would
    then never end by it.
    """
    deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if deaf and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def tell(text: str, *, end: str = "\n") -> None:
    """Say something on stderr, where it does not mix with results."""
    print(text, file=sys.stderr, end=end, flush=True)


class _Teller(logging.Handler):
    """Writes to what is stderr now, which tests and notebooks replace."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(self.format(record))


def tell_log(form: str = "headrace: %(message)s") -> logging.Logger:
    """Have the library's warnings appear on stderr in this form; returns its logger."""
    logger = logging.getLogger("headrace")
    teller = next((each for each in logger.handlers if isinstance(each, _Teller)), None)
    if teller is None:
        teller = _Teller()
        logger.addHandler(teller)
    teller.setFormatter(logging.Formatter(form))
    return logger


def progress(*columns: Any, quiet: bool = False, console: Console | None = None) -> Progress:
    """A progress display on stderr; silent for programs and where nobody looks.

    Where results are printed meanwhile, it has to be on their `console`.
    """
    from rich.progress import Progress

    shown = console or Console(stderr=True)
    return Progress(*columns, console=shown, transient=True, disable=quiet or not shown.is_terminal)


def with_letters(count: int) -> str:
    """What went with a group besides its progress."""
    return f", with {counted(count, 'dead letter')}" if count else ""
