"""What of a stream to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

Place = str | int | datetime | Mapping[int, int]
"""``"earliest"``, ``"latest"``, a time, an offset (of the only segment), or {segment: offset}."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What to read; ``until`` is not part of what is read.

    With ``segments`` only those are read, and not what follows from them: once they are sealed
    and read to their ends, a read that follows is done too.
    """

    start: Place = "earliest"
    until: Place | None = None
    follow: bool = False
    subject: str | None = None
    segments: Sequence[int] | None = None
    limit: int | None = None
    markers: bool = False
