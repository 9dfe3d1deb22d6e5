"""A Spark query as a reader that is put offline when it is silent for too long.

The rule is in ``core/spark_silence.py``.  A life that ends for it is not followed by another before
Spark asks again: as with other readers that stall, whoever is back says so itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import HeadraceError
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.groups.readers.core.spark_batches import SparkOpening, SparkPlan
from headrace.groups.readers.core.spark_silence import SparkSilence
from headrace.groups.readers.core.updates import RemoveReader
from headrace.groups.readers.runtime.life import ReaderLife
from headrace.groups.readers.runtime.record import EVICTED
from headrace.groups.readers.runtime.spark_planning import Choose
from headrace.groups.readers.runtime.spark_reader import SparkReader
from headrace.host import Host

_log = logging.getLogger(__name__)


class WatchedSparkReader(SparkReader):
    """See the module's text; a limit of 0 lets the query be silent for ever."""

    def __init__(
        self,
        host: Host,
        group: str,
        reader: str | None,
        settings: ReaderSettings,
        stall_after_ms: int,
    ) -> None:
        super().__init__(host, group, reader, settings)
        self._silence = SparkSilence(stall_after_ms, host.now_ms())
        self._listening = host.timer(self._listen)

    async def plan(self, last: SparkPlan | None, choose: Choose | None) -> SparkPlan | None:
        with self._heard():
            return await super().plan(last, choose)

    async def open(self, plan: SparkPlan) -> SparkOpening:
        with self._heard():
            return await super().open(plan)

    async def leave(self) -> None:
        self._listening.clear()
        await super().leave()

    def hear(self) -> None:
        """Spark has asked, and was answered from memory; on whatever thread."""
        self._silence.heard(self.host.now_ms())

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Spark asks for something, and waits for the answer."""
        self.stalled = False
        self._silence.asked(self.host.now_ms())
        try:
            yield
        finally:
            self._silence.answered(self.host.now_ms())
            self._listen_later()

    def _counted_news(self) -> None:
        self._silence.heard(self.host.now_ms())
        super()._counted_news()

    def _listen_later(self) -> None:
        at_ms = self._silence.look_at_ms(self.host.now_ms())
        if at_ms is not None and not self._left:
            self._listening.set_ms(at_ms)

    def _listen(self) -> None:
        """Put itself offline if the query was silent for too long."""
        life, units = self._life, self._units
        waiting = units.is_occupied or units.has_missing
        if life is not None and self._silence.is_stalled(self.host.now_ms(), waiting=waiting):
            self.stalled = True
            self.host.spawn(self._evict(life))
        else:
            self._listen_later()

    async def _evict(self, life: ReaderLife) -> None:
        held = "holds a batch" if self._units.is_occupied else "has something to read"
        why = f"{EVICTED}its query {held} and asks for nothing: its driver hangs or is frozen"
        try:
            update = RemoveReader(self.reader, token=life.token, why=why)
            await self._hub.update(self.name, update)
        except HeadraceError as error:
            _log.warning("%s: %s", self, error)
            self.stalled = False
            self._listen_later()
