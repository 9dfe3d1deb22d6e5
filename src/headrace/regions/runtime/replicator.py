"""Copies everything from one other region, round after round, until it is told to stop.

It keeps nothing of its own: what counts is in the catalog here, so any number may run, be killed
and be started again.  A source that is away is looked for every second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

import msgspec

from headrace.catalog import Tx, entries, replicas, streams
from headrace.errors import (
    CatalogUnavailableError,
    HeadraceError,
    LaneOrderError,
    RegionsDifferError,
    RegionUnreachableError,
    RoundOvertakenError,
    StoreError,
    TrimmedError,
)
from headrace.host.clock import calendar_s, steady_s
from headrace.log.log import Log
from headrace.regions.records import LINKS_BUCKET, LinkMember, links
from headrace.regions.runtime import copying, evening, rounds, scaling
from headrace.regions.runtime.beginning import begin_places
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.rounds import Copied, CopyRound, SegmentCopy
from headrace.regions.runtime.verifying import verify_source

_log = logging.getLogger(__name__)

AWAY_S = 1.0
"""How often a source that cannot be reached is looked for."""
IDLE_S = 1.0
"""How often a quiet source is looked at, in case news was lost."""
STOP_LOOK_S = 0.2
OVERTAKEN_MAX = 100

CarryOut = Callable[[Log, Log, tuple[SegmentCopy, ...]], list[Copied]]
OVERTAKEN = (RoundOvertakenError, LaneOrderError, TrimmedError)
"""Another round was first, or events were trimmed: the next plan begins there."""


class SourceStanding(msgspec.Struct, frozen=True):
    """How it goes with one source."""

    events: int = 0
    rounds: int = 0
    behind: int | None = None
    away_since_s: float | None = None
    error: str = ""


class Replicator:
    """Copies from one region.  ``carry_out`` may hand large rounds to Spark."""

    def __init__(
        self,
        log: Log,
        neighbours: Neighbours,
        source: str,
        *,
        events_max: int = rounds.ROUND_EVENTS_MAX,
        bytes_max: int = rounds.ROUND_BYTES,
        carry_out: CarryOut = copying.carry_out,
    ) -> None:
        self._log = log
        self._neighbours = neighbours
        self.source = source
        self._events_max, self._bytes_max = events_max, bytes_max
        self._carry_out = carry_out
        self._verified: Log | None = None
        self._member: LinkMember | None = None
        self.standing = SourceStanding()

    def run(self, stop: threading.Event) -> None:
        """Copy until told to stop; a source that is away is waited for."""
        while not stop.is_set():
            try:
                self._follow(stop)
            except (RegionUnreachableError, CatalogUnavailableError, StoreError) as error:
                since = self.standing.away_since_s or calendar_s()
                self._note(error, since)
                if self._member is not None:
                    self._neighbours.drop(self._member)
            except HeadraceError as error:
                self._note(error, None)
            except Exception as error:  # whatever it is, the next attempt may do better
                _log.exception("replication from %s", self.source)
                self._note(error, None)
            stop.wait(AWAY_S)

    def _note(self, error: Exception, since_s: float | None) -> None:
        if str(error) != self.standing.error:
            _log.warning("replication from %s: %s; trying again", self.source, error)
        self.standing = msgspec.structs.replace(
            self.standing, error=str(error), away_since_s=since_s
        )

    def _follow(self, stop: threading.Event) -> None:
        member = self.member()
        if member is None:
            return
        source_log = self._neighbours.log(member)
        names = self._log.catalog.read(
            lambda tx: [n for n, link in links(tx).items() if link.reads(self.source)]
        )
        channels = source_log.catalog.read(lambda tx: _channels(tx, names))
        bell = threading.Event()
        stops = [source_log.catalog.subscribe(each, bell.set) for each in channels]
        stops.append(self._log.catalog.subscribe(entries.channel(LINKS_BUCKET), bell.set))
        began = entries_revision(self._log)
        try:
            while not stop.is_set() and entries_revision(self._log) == began:
                bell.clear()
                if self.step():
                    continue
                deadline = steady_s() + IDLE_S
                while not bell.wait(STOP_LOOK_S) and steady_s() < deadline:
                    if stop.is_set():
                        return
        finally:
            for end in stops:
                end()

    def member(self) -> LinkMember | None:
        """Where the source is, if anything is copied from it."""
        for link in self._log.catalog.read(links).values():
            if link.reads(self.source):
                self._member = link.member(self.source)
                return self._member
        return None

    def step(self) -> bool:
        """One round; true if it moved anything."""
        member = self.member()
        if member is None:
            return False
        source_log = self._neighbours.log(member)
        if source_log is not self._verified:
            verify_source(self._log, source_log, self.source)
            self._verified = source_log
        for _ in range(OVERTAKEN_MAX):
            planned = self.plan(source_log)
            if not planned.copies and not planned.scalings:
                self._moved(0, planned.behind)
                for stream, why in planned.differ:
                    raise RegionsDifferError(self.source, stream, why)
                return False
            done: list[Copied] = []
            try:
                for each in planned.scalings:
                    scaling.commit(self._log, self.source, each)
                if planned.copies:
                    done = self._carry_out(self._log, source_log, planned.copies)
                    rounds.commit(self._log, self.source, done)
            except OVERTAKEN:
                copying.discard(self._log, done)
                continue
            self._moved(planned.events, planned.behind - _offsets(planned.copies))
            return True
        raise RoundOvertakenError(self.source, f"{OVERTAKEN_MAX} in a row came too late")

    def _moved(self, events: int, behind: int) -> None:
        known = self.standing
        self.standing = SourceStanding(
            known.events + events, known.rounds + (events > 0), max(0, behind)
        )

    def plan(self, source_log: Log) -> CopyRound:
        """What there is to copy now."""
        begin_places(self._log, source_log, self.source)
        here = self._log.catalog.read(lambda tx: rounds.look_here(tx, self.source), snapshot=True)
        if here is None:
            return CopyRound(self.source)

        def look(tx: Tx) -> CopyRound:
            planned = rounds.plan(here, tx, self.source, self._events_max, self._bytes_max)
            planned = evening.with_evened(here, tx, planned, self._events_max)
            return scaling.with_scalings(here, tx, planned)

        return source_log.catalog.read(look, snapshot=True)


def _offsets(copies: Iterable[SegmentCopy]) -> int:
    return sum(copy.end - copy.place.next_offset for copy in copies)


def _channels(tx: Tx, names: Iterable[str]) -> list[str]:
    found = [streams.id_of(tx, name) for name in names]
    return [streams.channel(each) for each in found if each is not None] + [replicas.CHANNEL]


def entries_revision(log: Log) -> int:
    """Grows with every change of the links."""
    return log.catalog.read(lambda tx: entries.latest(tx, LINKS_BUCKET))
