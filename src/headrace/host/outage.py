"""Riding out a catalog or a store that is away: loops try again for a while before they raise."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.errors import CatalogUnavailableError, StoreUnavailableError

OUTAGE_MS = 60_000
"""How long a loop tries again, by default."""
AGAIN_S = 0.5
"""How long it waits before each try."""

AWAY = (CatalogUnavailableError, StoreUnavailableError)

_log = logging.getLogger(__name__)


class Outage:
    """Since when nothing could be had; one for each loop."""

    def __init__(self, now_ms: Callable[[], int], limit_ms: int = OUTAGE_MS) -> None:
        self._now_ms = now_ms
        self._limit_ms = limit_ms
        self._since_ms: int | None = None

    def rides_out(self, error: BaseException) -> bool:
        """Whether to try again, and say nothing of an error to the application."""
        if not isinstance(error, AWAY):
            return False
        now_ms = self._now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
            if self._limit_ms:
                _log.warning("%s; trying again for %d s", error, self._limit_ms // 1000)
        return now_ms - self._since_ms < self._limit_ms

    def over(self) -> None:
        """Something could be had."""
        self._since_ms = None
