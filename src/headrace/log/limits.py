"""What one append may hold; every input is checked against these before anything is written."""

from __future__ import annotations

EVENT_BYTES_MAX = 8 * 1024 * 1024
"""Largest value of one event."""

KEY_BYTES_MAX = 1024
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 64 * 1024
EPOCH_LENGTH_MAX = 8
EPOCH_TIME_MAX = 2**63 - 2
"""An epoch's time has at most ``EPOCH_LENGTH_MAX`` parts, each from 0 to this number."""

APPEND_ROWS_MAX = 4_000_000
APPEND_BYTES_MAX = 1024 * 1024 * 1024
"""One append is one transaction; larger ones are refused and have to be cut."""

EPOCHS_JOINED = 8192
"""Appends to an epoch stream are joined while their rows have at most this many times."""

INLINE_BYTES = 1024 * 1024
"""A segment's share of an append up to this size lives inside the catalog."""

FILE_BYTES = 64 * 1024 * 1024
"""Larger shares are cut into files of about this size."""

READ_BYTES = 2 * 1024 * 1024
READ_ROWS = 65_536
"""How much a reader fetches and holds at a time: this many rows, or ``READ_BYTES``."""

APPEND_DEADLINE_S = 600.0
"""An append whose files are older than this starts over, so that a sweep never races with it."""

SWEEP_GRACE_S = 3600.0
"""Unreferenced files younger than this are left alone."""

READ_GRACE_S = 300.0
"""Files that trimming or compaction gave up stay this long, for reads that are under way."""

VACANT_GRACE_S = 3600.0
"""A segment of which nothing is left goes this long after it was sealed."""
