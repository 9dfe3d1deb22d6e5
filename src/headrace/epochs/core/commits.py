"""What may be committed to an epoch stream; :mod:`headrace.epochs.core.ledger` decides on it."""

from __future__ import annotations

import msgspec

from headrace.epochs.core import lines
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.lines import Span
from headrace.epochs.core.times import Time


class Step(msgspec.Struct, frozen=True):
    """One call within a commit: its rows are judged before its frontier moves."""

    times: tuple[Time, ...] = ()
    rows: int = 0
    advance_to: Frontier | None = None
    capabilities: tuple[tuple[int, Time | None], ...] = ()
    """(number, time): the next number is a new one to hold, a known one is moved to the time, or
    dropped where that is None."""


class JoinStream(msgspec.Struct, frozen=True):
    """A publisher comes; it holds ``start``, or the merged frontier."""

    publisher: str
    token: int
    start: Frontier | None = None


class Publish(msgspec.Struct, frozen=True):
    """Rows, advances and capabilities of one publisher, in the order of ``steps``."""

    publisher: str
    token: int
    steps: tuple[Step, ...]
    times: tuple[Time, ...] = ()
    spans: tuple[Span, ...] = ()
    take_back: bool = False
    """First take back all that it put into epochs it still holds."""
    resumes: bool = False
    """First drop its capabilities, which a program that is gone had; what they held stays held."""


class GiveUp(msgspec.Struct, frozen=True):
    """A publisher gives its times up: by itself, or an operator does it for it."""

    publisher: str
    token: int
    event: str = lines.CLOSED
    """``CLOSED``, ``RELEASED`` (its rows count), or ``ROLLED_BACK`` (they do not)."""
    reason: str = ""


class AbortStream(msgspec.Struct, frozen=True):
    """The stream ends here, with a reason."""

    publisher: str
    token: int
    reason: str


EpochCommit = JoinStream | Publish | GiveUp | AbortStream
