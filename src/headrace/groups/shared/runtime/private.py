"""Private durable subscriptions of a session: its own progress in every segment that matches.

The core says which segments to claim and what to record.  The claims fence an earlier process of
the same session.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.catalog import Tx, claims, entries, progress, streams
from headrace.errors import Fenced, SessionTakenOverError
from headrace.groups.consumer import OwnedUnit
from headrace.groups.owner import Owner, UnitSink
from headrace.groups.progress import Progress
from headrace.groups.progress.store import load
from headrace.groups.shared import ended_units, sessions
from headrace.groups.shared.core.messages import Unit
from headrace.groups.shared.core.private import PrivateSegments
from headrace.groups.shared.keys import finished_bucket
from headrace.groups.shared.runtime.listing import Look, Segments
from headrace.groups.shared.runtime.lookout import LOOK_COST_FACTOR
from headrace.groups.shared.runtime.state import claim_unit, unit_of_claim
from headrace.host import Host

PAUSE_S = 0.05
SILENT_MS = 60_000
"""A look is made this long after the last one, even if the catalog has heard of no stream."""


class Private(Owner):
    """One private subscription at work."""

    look_every_s = 1.0
    """Nobody is told of streams that are new, so it is asked this often whether there are any."""

    def __init__(
        self, host: Host, consumer: UnitSink, session: str, token: int, filter: str
    ) -> None:
        super().__init__(host, consumer)
        self._session = session
        self._token = token
        self.filter = filter
        self.group = sessions.private_group(session, filter)
        self._core = PrivateSegments()
        self._segments = Segments(filter)
        self._listening: dict[str, Callable[[], None]] = {}
        self._heard: int | None = None
        """What the catalog had heard of streams when the last look began; None: it failed."""
        self._silent_due_ms = 0

    def __str__(self) -> str:
        return f"session {self._session}"

    def stop(self) -> None:
        super().stop()
        while self._listening:
            self._listening.popitem()[1]()

    def pause_s(self, cost_s: float) -> float:
        """Rate-limits looks: every append is news, but few of them change the segments."""
        return max(PAUSE_S, cost_s * LOOK_COST_FACTOR)

    def finished(self, unit: OwnedUnit) -> None:
        self._core.read_to_end(unit_of_claim(unit.unit))
        self.follow()

    def refused(self, unit: OwnedUnit) -> None:
        self._core.refused(unit_of_claim(unit.unit))

    def given_back(self, unit: OwnedUnit, progress: Progress) -> None:  # noqa: ARG002
        self._core.given_back(unit_of_claim(unit.unit))

    def may_have_changed(self) -> bool:
        """Whether there was news of any stream since the last look, or none for very long."""
        silent = self._heard is not None and self._heard == self._host.log.catalog.heard
        return not silent or self._host.now_ms() >= self._silent_due_ms

    async def look(self) -> list[OwnedUnit]:
        """Record what is finished, then claim every segment that is ready."""
        heard, self._heard = self._host.log.catalog.heard, None
        try:
            await self._record_ends()
            found = await self._claim_due()
        except SessionTakenOverError:
            self.stop()
            raise
        self._heard = heard
        self._silent_due_ms = self._host.now_ms() + SILENT_MS
        return found

    async def _record_ends(self) -> None:
        ending = [self.units[claim_unit(self.group, unit)] for unit in self._core.ending]
        if not ending:
            return

        def record(tx: Tx) -> list[Fenced]:
            lost = claims.lost(tx, [(unit.group, unit.unit, unit.token) for unit in ending])
            gone = {fenced.unit for fenced in lost}
            for unit in ending:
                if unit.unit not in gone:
                    place = unit_of_claim(unit.unit)
                    ended_units.put_finished(tx, self.group, place, unit.segment_id)
            return lost

        locks = [claims.lock(self.group, unit.unit) for unit in ending]
        bucket = entries.lock(finished_bucket(self.group))
        lost = await self._host.in_transaction(record, (*locks, bucket))
        for fenced in lost:
            self._lose(fenced)
        done = [unit for unit in ending if self.units.get(unit.unit) is unit]
        self._core.recorded(unit_of_claim(unit.unit) for unit in done)
        self.drain(done)

    async def _claim_due(self) -> list[OwnedUnit]:
        held = [(unit.group, unit.unit, unit.token) for unit in self.units.values()]

        def look(tx: Tx) -> tuple[Look, dict[Unit, int], list[Fenced]]:
            found = self._segments.look(tx, everything=True)
            return found, ended_units.finished(tx, self.group), claims.lost(tx, held)

        catalog = self._host.log.catalog
        found, finished, lost = await self._host.in_thread(catalog.read, look, snapshot=True)
        self._listen(found)
        for fenced in lost:
            self._lose(fenced)
        self._segments.changes(found)
        rows = {unit: place.segment_id for unit, place in found.places.items()}
        before = {unit: self._segments.predecessors(unit) for unit in rows}
        todo = self._core.seen(rows, before, finished)
        for unit in todo.drop:
            self.drop(self.units[claim_unit(self.group, unit)])
        if not todo.claim:
            return []
        try:
            owned = await self._claim(todo.claim, found)
        except BaseException:
            self._core.claim_failed(todo.claim)
            raise
        self._core.claimed(todo.claim)
        return owned

    def _lose(self, fenced: Fenced) -> None:
        """A unit was taken away, perhaps by a seek; it is claimed anew if the session is ours."""
        unit = self.units.get(fenced.unit)
        if unit is not None and unit.token == fenced.token:
            self.drop(unit, fenced)
            self.refused(unit)

    async def _claim(self, due: list[Unit], found: Look) -> list[OwnedUnit]:
        owner = f"{self._session}:{self._token}"

        def claim(tx: Tx) -> list[OwnedUnit]:
            sessions.owned(tx, self._session, self._token)
            owned = []
            for unit in due:
                place = found.places[unit]
                name = claim_unit(self.group, unit)
                token = claims.take(tx, self.group, name, owner).token
                stored = load(tx, self.group, place.segment_id) or Progress(floor=place.tail)
                owned.append(
                    OwnedUnit(
                        group=self.group,
                        unit=name,
                        token=token,
                        stream=found.streams[place.stream_id],
                        segment=place.number,
                        segment_id=place.segment_id,
                        progress=stored,
                        filter=self.filter,
                    )
                )
            return owned

        locks = [claims.lock(self.group, claim_unit(self.group, unit)) for unit in due]
        return await self._host.in_transaction(claim, (*sessions.locks(self._session), *locks))

    def _listen(self, found: Look) -> None:
        """Hear of appends, splits, merges and seeks."""
        channels = {progress.seek_channel(self.group), *map(streams.channel, found.streams)}
        for channel in sorted(channels - self._listening.keys()) if not self.over else ():
            self._listening[channel] = self._host.on_news(channel, self.follow)
