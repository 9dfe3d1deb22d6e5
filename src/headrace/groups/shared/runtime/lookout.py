"""A leader's view of the log: when it looks, and splitting a segment for members without one.

The core asks for a listing once a second, and news of a stream brings the next one forward.
Listings are rate-limited by their measured cost: they take at most a fiftieth of the time, and
those without news (which only find news that was lost) a quarter of that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.catalog import streams
from headrace.errors import HeadraceError, LinkError, SegmentSealedError
from headrace.groups.decisions import What
from headrace.groups.shared.core.messages import Unit
from headrace.groups.shared.runtime.listing import Segments

if TYPE_CHECKING:
    from headrace.groups.shared.runtime.leading import Leading

LOOK_MS_MIN = 50
LOOK_COST_FACTOR = 50
QUIET_COST_FACTOR = 200
"""After a look, the pause is its cost times this: the first after news, the second without."""
SILENT_MS = 10_000
"""The pause while the catalog has heard of no stream at all, not even of a new one."""
SILENT_GROUPS = 50
"""``SILENT_MS`` is added once for every this many groups that the process leads."""
SCALE_MS = 1000

_log = logging.getLogger(__name__)


class Lookout:
    """Looks at the log for one leader."""

    def __init__(self, leading: Leading) -> None:
        self._leading = leading
        self._home = leading.home
        self.segments = Segments(leading.properties.filter)
        self.looking = False
        self.looked = False
        """Whether it has seen the log."""
        self.look_again = False
        """Whether there was news since the last look began."""
        self.look_due_ms = 0
        """The earliest time of the next look if there is news."""
        self._quiet_due_ms = 0
        """The earliest time of the next look without news."""
        self._heard: int | None = None
        """What the catalog had heard of streams when the last look began."""
        self._looked_ms = 0
        """When it last looked."""
        self._scale_due_ms = 0
        self._heads: dict[Unit, int] = {}
        self._listening: dict[int, Callable[[], None]] = {}

    def news(self) -> None:
        """A stream of the group has changed."""
        self.look_again = True
        self.tick(self._home.now_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due."""
        if self._leading.core.deposed:
            return
        if self.look_again and now_ms >= self.look_due_ms:
            self._look()
        if self._leading.properties.scale_for_members and now_ms >= self._scale_due_ms:
            self._scale_due_ms = now_ms + SCALE_MS
            self._scale()

    def look_if_due(self, now_ms: int) -> None:
        """The core asks what has changed."""
        if self.look_again:
            due_ms = self.look_due_ms
        elif self._heard is None or self._heard != self._home.host.log.catalog.heard:
            due_ms = self._quiet_due_ms
        else:
            due_ms = self._silent_due_ms
        if now_ms >= due_ms:
            self._look()

    def rest_ms(self, now_ms: int) -> int:
        """Until when the core need not ask, unless there is news of some stream."""
        if self.looking or self.look_again or self._leading.properties.scale_for_members:
            return now_ms
        return self._silent_due_ms if self._heard is not None else self._quiet_due_ms

    @property
    def _silent_due_ms(self) -> int:
        """The earliest time of the next look if there was no news of any stream at all."""
        silent_ms = SILENT_MS * (1 + len(self._home.leaders) // SILENT_GROUPS)
        return max(self._quiet_due_ms, self._looked_ms + silent_ms)

    def stop(self) -> None:
        """Hear of nothing any more."""
        while self._listening:
            self._listening.popitem()[1]()

    def _look(self) -> None:
        if self.looking:
            self.look_again = True
            return
        self.looking = True
        self._home.spawn(self._list())

    async def _list(self) -> None:
        host = self._home.host
        began_s = host.clock.spent_s()
        self.look_again = False  # news from here on calls for another look
        heard, self._heard = host.log.catalog.heard, None
        try:
            look = await host.in_thread(host.log.catalog.read, self.segments.look, snapshot=True)
        except HeadraceError as error:
            _log.warning("leader of %s cannot look at the log: %s", self._leading.group, error)
            return
        finally:
            self.looking = False
        if self._leading.core.deposed:
            return
        self.looked = True
        self._leading.listed(look)
        self._listen(look.streams)
        cost_ms = (host.clock.spent_s() - began_s) * 1000
        now_ms = self._home.now_ms
        self.look_due_ms = now_ms + max(LOOK_MS_MIN, int(cost_ms * LOOK_COST_FACTOR))
        regular_ms = self._leading.properties.settings.renew_segments_ms // 2
        self._quiet_due_ms = now_ms + max(regular_ms, int(cost_ms * QUIET_COST_FACTOR))
        self._looked_ms, self._heard = now_ms, heard

    def _listen(self, found: dict[int, str]) -> None:
        """Hear when one of the streams changes."""
        for stream_id in sorted(found.keys() - self._listening.keys()):
            channel = streams.channel(stream_id)
            self._listening[stream_id] = self._home.host.on_news(channel, self.news)

    # --- more members than segments ---

    def _scale(self) -> None:
        """Split the segment that takes most, one at a time, while members have none."""
        core = self._leading.core
        waiting = [u for u in core.units.values() if not (u.finished or u.ready)]
        active = [u for u in core.units.values() if u.active and u.end is None]
        grown = {u.unit: u.head - self._heads.get(u.unit, u.head) for u in active}
        self._heads = {u.unit: u.head for u in active}
        if waiting or not active or len(core.shares(self._home.now_ms)) <= len(active):
            return
        hottest = max(active, key=lambda u: (grown[u.unit], u.lag, u.unit))
        stream, _, number = hottest.unit.rpartition("/")
        self._home.spawn(self._split(stream, int(number)))

    async def _split(self, stream: str, number: int) -> None:
        host = self._home.host
        try:
            await host.in_thread(host.log.split, stream, number, 2)
        except (SegmentSealedError, LinkError):
            return  # somebody else was quicker, or it is split in the region that writes it
        except HeadraceError as error:
            _log.warning("segment %s of %s cannot be split: %s", number, stream, error)
            return
        reason = "more members than segments: split the one that takes most"
        self._leading.core.note(What.SPLIT, f"{stream}/{number}", reason, self._home.now_ms)
        self.news()
