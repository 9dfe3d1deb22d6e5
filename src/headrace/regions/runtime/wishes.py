"""What an operator wants of a segment's snapshots, carried out by the agent."""

from __future__ import annotations

import msgspec

from headrace.errors import SnapshotRefusedError
from headrace.host.clock import steady_s
from headrace.regions.core.effects import RegionEffect, SkipReason
from headrace.regions.core.segment import LinkedSegment
from headrace.regions.snapshots import AskedSnapshot, ForcedSnapshot


def begin(
    core: LinkedSegment, number: int, wanted: str, reached: frozenset[str]
) -> tuple[AskedSnapshot, list[RegionEffect]]:
    """Begin a snapshot now, whether or not there was traffic; ``reached`` can be asked."""
    asked = AskedSnapshot(segment=number, snapshot_id=wanted)
    cut_off = [name for name in core.controller.members if name not in reached]
    if cut_off:
        why = f"{SkipReason.DISCONNECTED}: {', '.join(cut_off)}"
        return msgspec.structs.replace(asked, outcome=why), []
    try:
        return asked, core.controller.start(wanted, int(steady_s() * 1000))
    except SnapshotRefusedError as error:
        return msgspec.structs.replace(asked, outcome=str(error)), []


def force(
    core: LinkedSegment, number: int, wanted: str
) -> tuple[ForcedSnapshot, list[RegionEffect]]:
    """Go on without who is silent; tells what stands at risk."""
    missing = core.controller.pending().get(wanted, (None, ()))[1]
    done = ForcedSnapshot(segment=number, snapshot_id=wanted, missing=missing)
    try:
        found = core.force(wanted)
    except SnapshotRefusedError as error:
        return msgspec.structs.replace(done, refused=str(error)), []
    told = tuple(
        f"events of {each.lane} from {each.sequence} on that {each.region} has up to "
        f"its offset {each.position}"
        for each in found.at_risk
    )
    done = msgspec.structs.replace(done, missing=found.missing, at_risk=told)
    return done, list(found.effects)
