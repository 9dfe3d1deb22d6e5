"""An event's place in the log."""

from __future__ import annotations

import msgspec


class Position(msgspec.Struct, frozen=True):
    """An event's place."""

    stream: str
    segment: int
    offset: int
