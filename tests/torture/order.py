"""Order per writer and key over arrays of identities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests.torture.ledger import WRITER_SHIFT, Identities

Lines = npt.NDArray[np.uint64]


def lines_of(identities: Identities) -> Lines:
    """The line that each event stands in: one number for each writer and key."""
    writer = identities["uid"] >> np.uint64(WRITER_SHIFT)
    return (writer << np.uint64(32)) | identities["key"].astype(np.uint64)


class OrderCheck:
    """Remembers the last event of every line; events are given in the order of the log."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def feed(self, identities: Identities) -> tuple[int, int] | None:
        """The first pair (earlier uid, later uid) that stands the wrong way round, if any."""
        if not len(identities):
            return None
        lines = lines_of(identities)
        order = np.argsort(lines, kind="stable")
        lines, uids = lines[order], identities["uid"][order]
        same_line = lines[1:] == lines[:-1]
        wrong = np.flatnonzero(same_line & (uids[1:] <= uids[:-1]))
        if len(wrong):
            at = int(wrong[0])
            return int(uids[at + 1]), int(uids[at])
        starts = [0, *(np.flatnonzero(~same_line) + 1).tolist()]
        ends = [*starts[1:], len(uids)]
        for start, end in zip(starts, ends, strict=True):
            line, first = int(lines[start]), int(uids[start])
            last = self._last.get(line, -1)
            if first <= last:
                return first, last
            self._last[line] = int(uids[end - 1])
        return None
