"""A partition that an instance consumes: opened, followed into its successors, given back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.errors import Fenced, HeadraceError
from headrace.groups.consumer import OwnedUnit
from headrace.groups.delivery import Stalled
from headrace.groups.owner import Owner
from headrace.groups.partitioned.core.messages import ClaimLost, Drained, MemberStalled
from headrace.groups.partitioned.runtime.units import SegmentsMoved
from headrace.groups.progress import Progress

if TYPE_CHECKING:
    from headrace.groups.partitioned.runtime.member import MemberInstance

_log = logging.getLogger(__name__)


class OwnedPartition(Owner):
    """A partition (or share) that this instance consumes, and the units that it stands for."""

    def __init__(self, member: MemberInstance, partition: int, token: int) -> None:
        super().__init__(member.host, member.consumer)
        self._member = member
        self._partition = partition
        self.token = token
        self.retry_s = member.core.timings.claim_retry_ms / 1000

    def __str__(self) -> str:
        return str(self._member)

    def give_back(self) -> None:
        """Let the application finish what it holds; the instance hears when it has."""
        self.stop()
        self.drain(self.units.values())
        self._check_drained()

    def give_up(self) -> None:
        """The partition is another instance's."""
        self.stop()
        for unit in list(self.units.values()):
            self.drop(unit)

    def lost(self) -> None:
        """The instance hears that the partition is another's."""
        self._member.feed(ClaimLost(self._partition, self.token))

    def given_back(self, unit: OwnedUnit, progress: Progress) -> None:  # noqa: ARG002
        self._check_drained()

    def _check_drained(self) -> None:
        if self.over and not self.units:
            self._member.feed(Drained(self._partition, self.token))

    def refused(self, unit: OwnedUnit) -> None:  # noqa: ARG002
        self.lost()

    def stalled(self, unit: OwnedUnit, stall: Stalled) -> None:
        super().stalled(unit, stall)
        self._member.feed(MemberStalled(self._partition, self.token))

    def stream_gone(self, unit: OwnedUnit, error: HeadraceError) -> None:  # noqa: ARG002
        _log.info("%s", error)
        self._member.recheck()

    def finished(self, unit: OwnedUnit) -> None:
        """A segment is sealed and all of it is acked: a share goes on to those that follow."""
        if self._member.reads_shares:
            self.drain([unit])
            self.follow()

    async def look(self) -> list[OwnedUnit]:
        """The segments of a share that can be read now."""
        held = {unit.segment: unit.token for unit in self.units.values()}
        try:
            return await self._member.take_more(self._partition, self.token, held)
        except SegmentsMoved:
            self.follow()
        except Fenced:
            self.lost()
        return []
