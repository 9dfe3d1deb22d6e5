"""Settling reports in doubt: their confirmation did not come, so the catalog is asked.

A leader that dies, or that a borrower lost touch with, may have stored a report without confirming
it.  An application must not be told that its ack does not count when it does, so it is told nothing
until the catalog shows it.  A report carries two fencing tokens, the unit's and the leader's.  It

* *counts* if its ranges are stored while the unit still has that token: nobody else can have
  acked them;
* *does not count* if they are not, and the leader it was made to has been replaced: that one can
  store nothing any more;
* is judged by the progress at the moment of the hand-over if the unit has a new token: leaders
  store that with the claims of a commit, in a ring of a few slots.

Until one of these holds the question is open.  If the slot was overwritten in the meantime and the
ranges are stored, nobody can know who acked them: the verdict is ``UNKNOWN``.  That takes two
hand-overs of the unit, and many of others, between two looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from headrace.catalog import Tx, claims, entries, leases, streams, vacant
from headrace.errors import CatalogClosedError, HeadraceError
from headrace.groups.progress import Progress
from headrace.groups.progress.store import load
from headrace.groups.shared import ended_units, properties
from headrace.groups.shared.core.messages import Ranges, Unit, unit_of
from headrace.groups.shared.runtime import state
from headrace.host import Host

LOOK_S_MIN = 0.01
LOOK_S_MAX = 0.25
LOOK_FACTOR = 1.5


class Doubt(msgspec.Struct, frozen=True):
    """A report in doubt, with the tokens under which it was made."""

    group: str
    unit: Unit
    unit_token: int
    leader_token: int
    ranges: Ranges


class Verdict(Enum):
    """What is known of a report."""

    COUNTS = "counts"
    DOES_NOT = "does not count"
    OPEN = "not decided yet"
    UNKNOWN = "cannot be known"


def judge(tx: Tx, doubts: Sequence[Doubt]) -> list[Verdict]:
    """The verdicts on reports, by what the catalog holds now."""
    leaders = {
        group: _lease_token(tx, group) if properties.get(tx, group) is not None else None
        for group in {doubt.group for doubt in doubts}
    }
    segments = segment_ids(tx, sorted({doubt.unit for doubt in doubts}))
    found = []
    for doubt in doubts:
        leader, segment_id = leaders[doubt.group], segments.get(doubt.unit)
        if leader is None or segment_id is None:
            stream, _, number = doubt.unit.rpartition("/")
            gone = leader is not None and vacant.is_gone(tx, stream, int(number))
            # The group or the stream is deleted, or the segment was acked to its end by somebody.
            found.append(Verdict.UNKNOWN if gone else Verdict.DOES_NOT)
        else:
            found.append(_judge(tx, doubt, leader, segment_id))
    return found


def _judge(tx: Tx, doubt: Doubt, leader_token: int, segment_id: int) -> Verdict:
    claim = claims.get(tx, doubt.group, state.claim_unit(doubt.group, doubt.unit))
    here = load(tx, doubt.group, segment_id)
    stored = here is not None and _holds(here, doubt.ranges)
    if claim is None or claim.token <= doubt.unit_token:
        if stored:
            return Verdict.COUNTS
        return Verdict.DOES_NOT if leader_token > doubt.leader_token else Verdict.OPEN
    at_hand_over = _handed(tx, doubt)
    if at_hand_over is not None:
        return Verdict.COUNTS if _holds(at_hand_over, doubt.ranges) else Verdict.DOES_NOT
    return Verdict.UNKNOWN if stored else Verdict.DOES_NOT


def _lease_token(tx: Tx, group: str) -> int:
    return leases.last(tx, state.lease_name(group))[1]


def _handed(tx: Tx, doubt: Doubt) -> Progress | None:
    """The progress with which the next owner began."""
    for entry in entries.changes(tx, ended_units.handed_bucket(doubt.group), 0).entries:
        for handed in state.decode_handed(doubt.group, entry.value):
            if handed.unit == doubt.unit and handed.unit_token == doubt.unit_token + 1:
                return handed.progress
    return None


def _holds(progress: Progress, ranges: Ranges) -> bool:
    acked = progress.acked()
    return all(acked.ack_range(low, high) == 0 for low, high in ranges)


def segment_ids(tx: Tx, units: Sequence[Unit]) -> dict[Unit, int]:
    """The segment ids of units; those that do not exist are left out."""
    by_stream: dict[str, list[int]] = {}
    for unit in units:
        stream, _, number = unit.rpartition("/")
        by_stream.setdefault(stream, []).append(int(number))
    found: dict[Unit, int] = {}
    for stream, numbers in by_stream.items():
        for at, segment_id in streams.segment_ids(tx, stream, numbers).items():
            found[unit_of(stream, at)] = segment_id
    return found


class _Question(msgspec.Struct, frozen=True, eq=False):
    """A report that somebody waits for."""

    doubt: Doubt
    tell: Callable[[Verdict], None]
    until_s: float


class Settler:
    """Polls the catalog until each report has a verdict, for ``patience_ms`` at most."""

    def __init__(self, host: Host, patience_ms: int) -> None:
        self._host = host
        self._patience_s = patience_ms / 1000
        self._open: list[_Question] = []
        self._task: asyncio.Task[None] | None = None

    def settle(self, doubt: Doubt, tell: Callable[[Verdict], None]) -> None:
        """Find out what became of a report; ``tell`` is called once, never with ``OPEN``."""
        self._open.append(_Question(doubt, tell, self._host.now_s() + self._patience_s))
        if self._task is None:
            self._task = self._host.spawn(self._ask())

    async def _ask(self) -> None:
        pause_s = LOOK_S_MIN
        try:
            while self._open:
                asked, self._open = self._open, []
                try:
                    verdicts = await self._look([question.doubt for question in asked])
                except BaseException:
                    self._open += asked
                    raise
                for question, verdict in zip(asked, verdicts, strict=True):
                    if verdict is not Verdict.OPEN:
                        question.tell(verdict)
                    elif self._host.now_s() >= question.until_s:
                        question.tell(Verdict.UNKNOWN)
                    else:
                        self._open.append(question)
                if self._open:
                    await self._host.sleep(pause_s)
                    pause_s = min(pause_s * LOOK_FACTOR, LOOK_S_MAX)
        finally:
            self._task = None
            left, self._open = self._open, []
            for question in left:
                question.tell(Verdict.UNKNOWN)

    async def _look(self, doubts: list[Doubt]) -> list[Verdict]:
        try:
            return await self._host.in_thread(
                self._host.log.catalog.read, lambda tx: judge(tx, doubts), snapshot=True
            )
        except CatalogClosedError:
            return [Verdict.UNKNOWN] * len(doubts)
        except HeadraceError:
            return [Verdict.OPEN] * len(doubts)
