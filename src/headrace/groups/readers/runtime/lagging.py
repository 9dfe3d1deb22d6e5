"""How far a life is behind, looked up only if there was news of a stream since it was not."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.catalog import Tx, batches
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.names import ReaderGroupName, ReaderGroupRecord
from headrace.groups.readers.runtime.moment import GroupMoment
from headrace.host import Host

SEGMENTS_MAX = 64
"""The most segments behind that are looked at to learn a reader's lag."""


class Lagging:
    """Of one life."""

    def __init__(self, host: Host, name: ReaderGroupName) -> None:
        self._host = host
        self._name = name
        self._heard: int | None = None
        """What the catalog had heard of streams when it was not behind; None: it may be."""

    def forget(self) -> None:
        """It reads something else now."""
        self._heard = None

    @property
    def unchanged(self) -> bool:
        """Whether it was not behind, and there was no news of any stream since."""
        return self._heard is not None and self._heard == self._host.log.catalog.heard

    async def ms(self, record: ReaderGroupRecord | None, floors: Mapping[SegmentId, int]) -> int:
        """How long the oldest event has waited that is not acked here."""
        if not floors or record is None or self.unchanged:
            return 0
        heard, self._heard = self._host.log.catalog.heard, None
        catalog = self._host.log.catalog

        def look(tx: Tx) -> int | None:
            behind = [
                (extent.id, floors[segment])
                for segment, extent in GroupMoment(tx, self._name, record).extents(floors).items()
                if floors[segment] < extent.head
            ]
            oldest_us = now_us = tx.now_us()
            for segment_id, floor in behind[:SEGMENTS_MAX]:
                batch = batches.first_ending_after(tx, segment_id, floor)
                if batch is not None:
                    oldest_us = min(oldest_us, batch.created_us)
            return max(0, now_us - oldest_us) // 1000 if behind else None

        found = await self._host.in_thread(catalog.read, look)
        if found is None:
            self._heard = heard
        return found or 0
