"""What instances decide by themselves, handed to the recorder of their program.

A decision of an instance is about one partition.  The recorder joins those that say the same, so
that a step is one record; what an instance takes over is recorded when it has all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.groups.decisions import Decision, What, ranges
from headrace.groups.decisions.recorder import Recorder
from headrace.groups.partitioned.core.messages import InstanceDecision
from headrace.groups.partitioned.deciding import came, is_there, key_of
from headrace.host import Host

if TYPE_CHECKING:
    from headrace.groups.partitioned.runtime.member import MemberInstance

_ENDS = frozenset({What.UNPINNED, What.FENCED, What.EVICTED, What.LEFT})
_TAKES = frozenset({What.ASSIGNED, What.WAITS})


class Record:
    """Writes the decisions of the instances of one program."""

    def __init__(self, host: Host) -> None:
        self._recorder = Recorder(host)
        self.flush = self._recorder.flush
        self.close = self._recorder.close

    def add(self, joined: MemberInstance, told: InstanceDecision) -> None:
        """Keep a decision; it is written soon, together with others."""
        if told.passing:
            return
        ends = told.what in _ENDS
        decision = Decision(
            what=told.what,
            reason=told.reason,
            units=ranges(_partitions(joined, told)),
            source=told.member if ends else told.other,
            target="" if ends else told.member,
            instance=told.instance,
            token=joined.core.pin_token or 0,
        )
        held = joined.core.taking_over if told.what in _TAKES and decision.units else None

        self._keep(joined, decision, held)

    def joined(self, joined: MemberInstance) -> None:
        """Tell once that an instance has come; one that gets the pin at once is told of with it."""
        if not joined.announced:
            joined.announced = True
            self._keep(joined, came(joined.core.member, joined.core.instance))

    def _keep(
        self, joined: MemberInstance, decision: Decision, held: Callable[[], bool] | None = None
    ) -> None:
        name = joined.name
        self._recorder.add(key_of(name), decision, lambda tx: is_there(tx, name), held)


def _partitions(joined: MemberInstance, told: InstanceDecision) -> tuple[int, ...]:
    if told.partition is None:
        return ()
    return joined.partitions_of_share() if joined.reads_shares else (told.partition,)
