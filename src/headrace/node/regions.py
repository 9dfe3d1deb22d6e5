"""What a node knows of other regions.

They are other catalogs, perhaps far away or gone.  So they are asked only when somebody wants to
know, by one look at a time for everybody who asks, and at most every few seconds.
"""

from __future__ import annotations

import asyncio

from headrace.api.client import Headrace
from headrace.regions.status import RegionsStatus

LOOK_EVERY_S = 3.0


class RegionsLook:
    """The last look at all regions, made anew when it is too old."""

    def __init__(self, hr: Headrace) -> None:
        self._hr = hr
        self._lock = asyncio.Lock()
        self._found: RegionsStatus | None = None
        self._seen_s = 0.0

    async def look(self) -> tuple[RegionsStatus, float]:
        """What was found, and how old that is in seconds."""
        async with self._lock:
            age_s = self._hr.host.now_s() - self._seen_s
            if self._found is None or age_s > LOOK_EVERY_S:
                self._found = await self._hr.regions.status()
                self._seen_s = self._hr.host.now_s()
                age_s = 0.0
            return self._found, age_s
