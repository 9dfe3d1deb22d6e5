"""``headrace epoch read``: whole epochs on the screen, or as JSON lines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from headrace.cli.epoch_shapes import CompleteEpoch
from headrace.cli.epoch_times import StreamArgument, Typed, times_of, typed
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, print_json, tell
from headrace.cli.read import RowScreen, show_json
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Antichain, Frontier, not_before
from headrace.epochs.core.times import TimeShape
from headrace.epochs.runtime.progress_log import load_state
from headrace.epochs.runtime.starting import WORDS, opened

if TYPE_CHECKING:
    from headrace.epochs.runtime.looking import SeenEpoch
    from headrace.log.log import Log

TOKEN_CHARS = 16
EARLIEST = "earliest"

Follow = Annotated[bool, Parameter(negative="", alias="-f", help="Go on as epochs are completed.")]
NameOption = Annotated[
    str | None,
    Parameter(help="Keep in the catalog how far this came, and go on from there next time."),
]


class Wanted(msgspec.Struct, frozen=True):
    """The epochs that are to be shown."""

    stream: str
    start: str
    """As it was typed."""
    first: Typed | None
    """The time that it is, unless it is a word or a token."""
    last: Typed | None
    follow: bool
    name: str | None
    limit: int | None


class Bounds(msgspec.Struct, frozen=True):
    """From where to where a stored stream is read, and what is to come of it by now."""

    begin: Frontier | None
    end: Frontier | None
    lower: Frontier
    empty: bool
    """Nothing lies between them."""


def read(
    stream: StreamArgument,
    /,
    *,
    start: Annotated[
        str,
        Parameter(name="--from", help="earliest, open, now, a time, or a token that was printed."),
    ] = EARLIEST,
    until: Annotated[str | None, Parameter(help="End before this time.")] = None,
    follow: Follow = False,
    name: NameOption = None,
    limit: Annotated[int | None, Parameter(help="At most this many epochs.")] = None,
    options: Options = NONE,
) -> int:
    """Read whole epochs; of one that is not complete nothing is shown.

    With --json each row is a line as in headrace read, and each epoch ends with a line
    {"complete": 17, "epoch_events": …, "token": …}.  Ctrl-C ends between epochs, a second one at
    once.

    * `headrace epoch read orders --from earliest --until 18`
    * `headrace epoch read orders --follow --name report --json`
    """
    _check_limit(limit)
    first = None if start in WORDS or _is_token(start) else typed(start, "--from")
    last = None if until is None else typed(until, "--until")
    wanted = Wanted(stream, start, first, last, follow, name, limit)
    if not follow and name is None:
        shown = _look(wanted, options)
        if shown is not None:
            return shown
    from headrace.cli import epoch_follow

    return epoch_follow.run(wanted, options)


def _look(wanted: Wanted, options: Options) -> int | None:
    """Show what is there of a small stream; None, and nothing is shown, if it is another."""
    with options.open() as log:
        found = log.stream(wanted.stream)
        if found.config.epochs is None or not found.config.epochs.stored:
            return None
        from headrace.epochs.runtime import looking

        if not looking.is_small(found):
            return None
        bounds = bounds_of(log, wanted)
        if bounds.empty:
            return nothing(wanted.stream, bounds.lower, options)
        start = bounds.begin or wanted.start
        shown = 0
        for epoch in looking.whole_epochs(log, wanted.stream, start, bounds.end or ()):
            _show(epoch, options)
            shown += 1
            if shown == wanted.limit:
                break
    return 0 if shown else nothing(wanted.stream, bounds.lower, options)


def bounds_of(log: Log, wanted: Wanted) -> Bounds:
    """What of a stored stream is to be read; raises if that is no order."""
    shape, lower = _standing(log, wanted.stream)
    begin = None if wanted.first is None else times_of(shape, wanted.first, "--from")
    end = None if wanted.last is None else times_of(shape, wanted.last, "--until")
    if begin and end and not not_before(shape, end, begin):
        given = f"--until {ledger.shown(end)} is before --from {ledger.shown(begin)}"
        raise UsageError(given)
    if wanted.follow or not lower:
        return Bounds(begin, end, lower, empty=False)
    # What is complete now; what lies at or after the frontier is still to come.
    end = Antichain.minimal(shape, (*lower, *(end or ()))).frontier
    before = begin is not None and bool(begin) and not not_before(shape, end, begin)
    return Bounds(begin, end, lower, empty=before)


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: read at least one epoch")


def _is_token(text: str) -> bool:
    return len(text) >= TOKEN_CHARS and not text.replace(",", "").replace(" ", "").isdecimal()


def _standing(log: Log, stream: str) -> tuple[TimeShape, Frontier]:
    """The shape of a stream's times, and what is to come; nothing after it was ended."""
    (found,), shape = opened(log, [stream])
    state = log.catalog.read(lambda tx: load_state(tx, found))
    return shape, state.lower if state.status == ledger.OPEN else ()


def nothing(stream: str, lower: Frontier, options: Options) -> int:
    """Say that no epoch is complete there; returns the exit status."""
    if not options.json:
        tell(
            f"headrace: no complete epoch there; stream {stream!r} is at {ledger.shown(lower)}, "
            f"and what holds it back is told by: headrace epoch explain {stream}"
        )
    return 0


def _show(epoch: SeenEpoch, options: Options) -> None:
    if options.json:
        if epoch.rows:
            show_json(epoch.rows)
        done = CompleteEpoch(complete=epoch.time, epoch_events=len(epoch.rows), token=epoch.token)
        print_json(done)
    else:
        print(f"epoch {epoch.time}: {counted(len(epoch.rows), 'row')}")
        if epoch.rows:
            RowScreen().show(epoch.rows)
    sys.stdout.flush()
