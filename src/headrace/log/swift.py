"""Which loads an event loop may read by itself.

Where a catalog is a file on this machine, a load takes a millisecond or two, and the change between
threads, which run Python one at a time anyway, would take a good part of that.  A disk that turns
out to be slow is for a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from headrace.catalog import Catalog

SWIFT_S = 0.005
SWIFT_OVER = 4
"""Loads that take longer, over about so many of them, are not for the event loop."""
COUNTED_S = 2 * SWIFT_S
"""One load counts for no more: what holds up a single one is the machine, not the disk."""

T = TypeVar("T")


class Swift:
    """Whether the loads of one reader, or of a few, are read on the event loop."""

    def __init__(self, catalog: Catalog) -> None:
        self.on = catalog.quick
        self._load_s = 0.0
        """How long a load took lately."""

    def load(self, read: Callable[[], T]) -> T:
        """Read a load, and see how long that takes."""
        began_s = time.perf_counter()
        found = read()
        took_s = min(time.perf_counter() - began_s, COUNTED_S)
        self._load_s += (took_s - self._load_s) / SWIFT_OVER
        if self._load_s > SWIFT_S:
            self.on = False
        return found
