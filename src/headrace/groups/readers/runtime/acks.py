"""Acks of readers: stored under the claims of their units, however many a reader owns.

A reader may own thousands of segments.  So the rows of their claims are held, all in one query and
always in one order, where the ack store of other groups has a named lock for each unit.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.catalog import Tx, claims
from headrace.errors import Fenced
from headrace.groups.consumer import CatalogAcks, OwnedUnit, UnitAck
from headrace.groups.progress.store import Write


class ReaderAcks(CatalogAcks):
    """The ack store of a reader; see the module's text."""

    def locks(self, unit: OwnedUnit) -> list[str]:  # noqa: ARG002
        return []

    def _put(self, tx: Tx, writes: Sequence[Write], units: Sequence[str]) -> list[Fenced | None]:
        held = claims.hold(tx, writes[0].group, units)
        results: list[Fenced | None] = []
        mine = []
        for write, unit in zip(writes, units, strict=True):
            claim = held.get(unit)
            if claim is not None and claim.token == write.token and claim.owner is not None:
                results.append(None)
                mine.append(write)
            else:
                current = 0 if claim is None else claim.token
                results.append(Fenced(write.group, unit, write.token, current))
        if mine:
            self._joining.put(tx, mine)
        return results

    def _saying(self, *_: object) -> None:
        return None  # rows are held, which a call does not

    def stage(self, tx: Tx, ack: UnitAck) -> None:
        claims.hold(tx, ack.unit.group, [ack.unit.unit])
        super().stage(tx, ack)
