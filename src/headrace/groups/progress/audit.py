"""Audit of progress: whether what is stored of groups can be read, and be true."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.catalog import Tx, audit
from headrace.errors import HeadraceError
from headrace.groups.progress.store import decode


def examine(tx: Tx) -> Iterator[str]:
    """What is wrong, in words."""
    for row, head in audit.progress_rows(tx):
        what = f"group {row.group!r}: its progress in segment {row.segment_id}"
        try:
            found = decode(row)
        except HeadraceError as error:
            yield f"{what}: {error}"
            continue
        above = found.above
        end = above[-1][1] if above else found.floor
        if found.floor != row.floor:
            yield f"{what} has the floors {row.floor} and {found.floor}"
        elif head is not None and end > head:
            yield f"{what} reaches offset {end}, and the segment's head is {head}"
