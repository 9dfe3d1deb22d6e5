"""The segments of a private subscription: which to claim, and which are at their end.

Theory of operation
-------------------
There is nobody to share with, so there is no leader and few rules.  A segment is claimed when it
is ready (:mod:`headrace.log.order`).  When it is read to its end, that is recorded, and only then
may what follows from it be claimed: whoever runs the session next begins where this one was.  That
it is finished is for the catalog to say, since a seek may take it back.  A unit that is refused is
claimed again; if the session itself belongs to somebody else by then, the claim finds that out.

The core is told what the log and the catalog show, and what became of its requests.  It says what
to claim, what to record and what to drop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.groups.shared.core.messages import Unit
from headrace.log import order


class PrivateStatus(StrEnum):
    """Where a segment stands in a private subscription."""

    ABSENT = "absent"
    CLAIMING = "claiming"
    OPEN = "open"
    ENDING = "ending"
    LEAVING = "leaving"


PRIVATE_TRANSITIONS: Final[dict[tuple[PrivateStatus, str], PrivateStatus]] = {
    (PrivateStatus.ABSENT, "ready"): PrivateStatus.CLAIMING,
    (PrivateStatus.CLAIMING, "claimed"): PrivateStatus.OPEN,
    (PrivateStatus.CLAIMING, "claim failed"): PrivateStatus.ABSENT,
    (PrivateStatus.OPEN, "read to its end"): PrivateStatus.ENDING,
    (PrivateStatus.OPEN, "refused"): PrivateStatus.ABSENT,
    (PrivateStatus.OPEN, "given back"): PrivateStatus.ABSENT,
    (PrivateStatus.OPEN, "stream gone"): PrivateStatus.ABSENT,
    (PrivateStatus.ENDING, "end recorded"): PrivateStatus.LEAVING,
    (PrivateStatus.ENDING, "refused"): PrivateStatus.ABSENT,
    (PrivateStatus.ENDING, "given back"): PrivateStatus.ABSENT,
    (PrivateStatus.ENDING, "stream gone"): PrivateStatus.ABSENT,
    (PrivateStatus.LEAVING, "refused"): PrivateStatus.ABSENT,
    (PrivateStatus.LEAVING, "given back"): PrivateStatus.ABSENT,
    (PrivateStatus.LEAVING, "stream gone"): PrivateStatus.ABSENT,
}
"""Every change of a segment's status, by what causes it."""


class ToDo(NamedTuple):
    """What follows from what was seen."""

    claim: list[Unit]
    drop: list[Unit]
    """Open, but their streams were deleted, and perhaps made anew under the same name."""


class PrivateSegments:
    """The segments of one private subscription in this process."""

    def __init__(self) -> None:
        self._status: dict[Unit, PrivateStatus] = {}
        self._rows: dict[Unit, int] = {}

    def status(self, unit: Unit) -> PrivateStatus:
        """Where a segment stands."""
        return self._status.get(unit, PrivateStatus.ABSENT)

    @property
    def ending(self) -> list[Unit]:
        """Read to their ends, which is to be recorded."""
        return [u for u, status in self._status.items() if status is PrivateStatus.ENDING]

    def seen(
        self,
        rows: Mapping[Unit, int],
        predecessors: Mapping[Unit, Iterable[Unit]],
        finished: Mapping[Unit, int],
    ) -> ToDo:
        """The segments there are, as rows of the log, and those that are recorded as finished.

        A stream that was deleted and made anew has other rows under the same names.
        """
        drop = [unit for unit, row in self._rows.items() if rows.get(unit) != row]
        for unit in drop:
            self._move(unit, "stream gone")
        over = {unit for unit, row in finished.items() if rows.get(unit) == row}
        ready = order.standing({unit: predecessors[unit] for unit in rows}, over).ready
        claim = [unit for unit in ready if self.status(unit) is PrivateStatus.ABSENT]
        for unit in claim:
            self._rows[unit] = rows[unit]
            self._move(unit, "ready")
        return ToDo(claim, drop)

    def claimed(self, units: Iterable[Unit]) -> None:
        """Units are ours."""
        for unit in units:
            self._move(unit, "claimed")

    def claim_failed(self, units: Iterable[Unit]) -> None:
        """Nothing was claimed; it is tried again."""
        for unit in units:
            self._move(unit, "claim failed")

    def read_to_end(self, unit: Unit) -> None:
        """A sealed segment is consumed."""
        self._move(unit, "read to its end")

    def recorded(self, units: Iterable[Unit]) -> None:
        """The catalog knows that units are finished."""
        for unit in units:
            self._move(unit, "end recorded")

    def refused(self, unit: Unit) -> None:
        """Somebody else has claimed a unit."""
        self._move(unit, "refused")

    def given_back(self, unit: Unit) -> None:
        """The consumer has let go of a unit: it is finished, or the subscription ends."""
        self._move(unit, "given back")

    def _move(self, unit: Unit, cause: str) -> None:
        status = PRIVATE_TRANSITIONS[self.status(unit), cause]
        if status is PrivateStatus.ABSENT:
            del self._status[unit], self._rows[unit]
        else:
            self._status[unit] = status
