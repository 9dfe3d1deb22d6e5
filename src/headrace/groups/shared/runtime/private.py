"""Private durable subscriptions of a session: its own progress in every segment that matches.

There is nobody to share with, so there is no leader: the session claims each segment as soon as it
is ready (:mod:`headrace.log.order`), and stores its progress itself.  The claims fence an earlier
process of the same session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from headrace.catalog import Tx, claims, entries, progress, streams
from headrace.errors import Fenced, HeadraceError, SessionTakenOverError, UnknownUnitError
from headrace.groups.consumer import OwnedUnit
from headrace.groups.progress import Progress
from headrace.groups.progress.store import load
from headrace.groups.shared import sessions, starts
from headrace.groups.shared.core.messages import Unit
from headrace.groups.shared.runtime.borrowing import Post, UnitSink
from headrace.groups.shared.runtime.leading import LOOK_COST_FACTOR
from headrace.groups.shared.runtime.listing import Look, Segments
from headrace.groups.shared.runtime.state import claim_unit
from headrace.log import order

LOOK_S = 1.0
PAUSE_S = 0.05

_log = logging.getLogger(__name__)


class Private:
    """One private subscription at work."""

    def __init__(self, post: Post, sink: UnitSink, session: str, token: int, filter: str) -> None:
        self._post = post
        self._sink = sink
        self._session = session
        self._token = token
        self.filter = filter
        self.group = sessions.private_group(session, filter)
        self._segments = Segments(filter)
        self._open: dict[str, OwnedUnit] = {}
        self._drained: dict[str, asyncio.Future[Progress]] = {}
        self._news = asyncio.Event()
        self._stop_listening: list[Callable[[], None]] = []
        self._listening_to: set[str] = set()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self.failure: HeadraceError | None = None

    async def start(self) -> None:
        """Open what there is, and follow what comes."""
        await self._step()
        self._task = self._post.host.spawn(self._follow())

    async def _follow(self) -> None:
        host = self._post.host
        while not self._closing:
            await host.wait(self._news, LOOK_S)
            self._news.clear()
            began_s = host.clock.spent_s()
            try:
                await self._step()
            except SessionTakenOverError as error:
                self.failure = error
                return
            except HeadraceError as error:
                _log.warning("session %s: %s", self._session, error)
            # Every append is news, and few of them change which segments there are.
            cost_s = host.clock.spent_s() - began_s
            await host.sleep(max(PAUSE_S, cost_s * LOOK_COST_FACTOR))

    async def _step(self) -> None:
        """Claim and open every segment whose turn it is."""
        host = self._post.host

        held = [(unit.group, unit.unit, unit.token) for unit in self._open.values()]

        def look(tx: Tx) -> tuple[Look, dict[Unit, int], list[Fenced]]:
            found = self._segments.look(tx, everything=True)
            return found, starts.finished(tx, self.group), claims.lost(tx, held)

        found, over, lost = await host.in_thread(host.log.catalog.read, look, snapshot=True)
        self._listen(found)
        for fenced in lost:
            self._lose(fenced)
        self._segments.changes(found)
        graph = {unit: self._segments.predecessors(unit) for unit in found.places}
        through = {unit for unit, at in over.items() if at == found.segment_id(unit)}
        ready = order.standing(graph, through).ready
        due = [unit for unit in ready if claim_unit(self.group, unit) not in self._open]
        if due and not self._closing:
            await self._claim(due, found)

    def _lose(self, fenced: Fenced) -> None:
        """A seek has taken a unit away; it is claimed anew, and read from where it is."""
        if fenced.unit in self._open and self._open[fenced.unit].token == fenced.token:
            with suppress(UnknownUnitError):
                self._sink.abandon(fenced.unit, fenced.token, fenced)
            self.fenced(fenced.unit)

    async def _claim(self, due: list[Unit], found: Look) -> None:
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
        for unit in await self._post.host.in_transaction(
            claim, (*sessions.locks(self._session), *locks)
        ):
            self._open[unit.unit] = unit
            self._sink.open(unit)

    def _listen(self, found: Look) -> None:
        channels = {progress.seek_channel(self.group), *map(streams.channel, found.streams)}
        for channel in sorted(channels - self._listening_to):
            self._listening_to.add(channel)
            self._stop_listening.append(self._post.host.on_news(channel, self._news.set))

    # --- what the consumer says ---

    def owns(self, name: str) -> bool:
        """Whether a unit is one of this subscription."""
        return name in self._open

    def drained(self, name: str, progress: Progress) -> None:
        """Nothing of the unit is in flight."""
        self._open.pop(name, None)
        waiting = self._drained.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(progress)

    def fenced(self, name: str) -> None:
        """Somebody else has the unit."""
        self._open.pop(name, None)
        waiting = self._drained.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(Progress())

    def finished(self, name: str, token: int) -> None:
        """A sealed segment is consumed: what follows it may open."""
        unit = self._open.get(name)
        if unit is not None and unit.token == token:
            self._post.spawn(self._finish(unit))

    async def _finish(self, unit: OwnedUnit) -> None:
        def finish(tx: Tx) -> None:
            claims.check(tx, self.group, unit.unit, unit.token)
            place = f"{unit.stream}/{unit.segment}"
            starts.put_finished(tx, self.group, place, unit.segment_id)

        locks = (
            claims.lock(self.group, unit.unit),
            entries.lock(starts.finished_bucket(self.group)),
        )
        try:
            await self._post.host.in_transaction(finish, locks)
        except Fenced:
            return
        with suppress(UnknownUnitError):
            self._sink.drain(unit.unit, unit.token)
        self._news.set()

    # --- the end ---

    async def drain(self, timeout_s: float) -> None:
        """Hand out nothing more, and wait for what is in flight."""
        self._closing = True
        self._news.set()
        for stop in self._stop_listening:
            stop()
        self._stop_listening.clear()
        loop = asyncio.get_running_loop()
        waiting = []
        for name, unit in list(self._open.items()):
            with suppress(UnknownUnitError):
                self._sink.drain(name, unit.token)
                waiting.append(self._drained.setdefault(name, loop.create_future()))
        await asyncio.sleep(0)
        if waiting and timeout_s > 0:
            await asyncio.wait(waiting, timeout=timeout_s)

    async def close(self) -> None:
        """Stop following; what the application still holds counts no more.

        Comes after what was acked is stored: acks on their way would be told that they do not
        count, though they do.
        """
        self._closing = True
        for stop in self._stop_listening:
            stop()
        self._stop_listening.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for name, unit in self._open.items():
            with suppress(UnknownUnitError):
                self._sink.abandon(name, unit.token, Fenced(self.group, name, unit.token))
        self._open.clear()
