"""The states of an instance and of its partitions, and all ways between them.

The tables are what the code runs on: a step that is not in them fails.  ``docs/`` shows them as
diagrams (``python -m headrace.sim.partitioned_diagrams``).
"""

from __future__ import annotations

from enum import Enum, StrEnum
from itertools import product
from typing import Final

from headrace.groups.partitioned.core.messages import Phase


class Stage(Enum):
    """Where a partition stands with an instance."""

    ABSENT = "absent"
    CLAIMING = "claiming"
    OWNED = "owned"
    DRAINING = "draining"
    RELEASING = "releasing"


class PhaseCause(StrEnum):
    """What moves an instance to another phase."""

    MEMBER = "its name is a member"
    NO_MEMBER = "its name is no member"
    GRANTED = "pin granted"
    STEP_DOWN = "has to step down"
    UNPINNED = "pin lost or given up"
    UNPINNED_NO_MEMBER = "pin gone and no member any more"
    LEFT = "pin given up to close"
    CLOSE = "closing"


PHASE_TRANSITIONS: Final[dict[tuple[Phase, PhaseCause], Phase]] = {
    (Phase.WAITING, PhaseCause.MEMBER): Phase.STANDBY,
    (Phase.WAITING, PhaseCause.NO_MEMBER): Phase.WAITING,
    (Phase.STANDBY, PhaseCause.NO_MEMBER): Phase.WAITING,
    (Phase.STANDBY, PhaseCause.GRANTED): Phase.PINNED,
    (Phase.PINNED, PhaseCause.STEP_DOWN): Phase.STEPPING_DOWN,
    (Phase.PINNED, PhaseCause.UNPINNED): Phase.STANDBY,
    (Phase.STEPPING_DOWN, PhaseCause.UNPINNED): Phase.STANDBY,
    (Phase.STEPPING_DOWN, PhaseCause.UNPINNED_NO_MEMBER): Phase.WAITING,
    (Phase.STEPPING_DOWN, PhaseCause.LEFT): Phase.CLOSED,
    (Phase.WAITING, PhaseCause.CLOSE): Phase.CLOSED,
    (Phase.STANDBY, PhaseCause.CLOSE): Phase.CLOSED,
}


class StageCause(StrEnum):
    """What moves a partition to another stage."""

    WANTED = "wanted"
    NOT_WANTED = "no longer wanted"
    GRANTED = "claim granted"
    IN_VAIN = "claim granted in vain"
    MOVES = "moves away"
    CUT_OFF = "cut off"
    DRAINED = "drained"
    RELEASED = "released"
    LOST = "claim lost"
    PIN_LOST = "pin lost"


_HELD = (Stage.OWNED, Stage.DRAINING, Stage.RELEASING)

STAGE_TRANSITIONS: Final[dict[tuple[Stage, StageCause], Stage]] = {
    (Stage.ABSENT, StageCause.WANTED): Stage.CLAIMING,
    (Stage.CLAIMING, StageCause.NOT_WANTED): Stage.ABSENT,
    # An answer may come late, and a request that was made twice may be granted twice.
    **dict.fromkeys(product(Stage, [StageCause.GRANTED]), Stage.OWNED),
    **dict.fromkeys(product(Stage, [StageCause.IN_VAIN]), Stage.RELEASING),
    (Stage.OWNED, StageCause.MOVES): Stage.DRAINING,
    (Stage.OWNED, StageCause.CUT_OFF): Stage.RELEASING,
    (Stage.DRAINING, StageCause.CUT_OFF): Stage.RELEASING,
    (Stage.DRAINING, StageCause.DRAINED): Stage.RELEASING,
    (Stage.RELEASING, StageCause.RELEASED): Stage.ABSENT,
    **dict.fromkeys(product(_HELD, [StageCause.LOST]), Stage.ABSENT),
    **dict.fromkeys(product((Stage.CLAIMING, *_HELD), [StageCause.PIN_LOST]), Stage.ABSENT),
}
