"""The states of a borrower and of its units, and all ways between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """Where a borrower stands."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    UNSUBSCRIBING = "unsubscribing"
    GONE = "gone"


class UnitStatus(StrEnum):
    """Where one of its units stands."""

    ABSENT = "absent"
    GRANTED = "granted"
    REVOKING = "revoking"


TRANSITIONS: Final[dict[tuple[Status, str], Status]] = {
    (Status.CONNECTING, "leader_connect_response"): Status.CONNECTED,
    (Status.CONNECTING, "on_unsubscribe"): Status.GONE,
    (Status.CONNECTING, "on_disconnect"): Status.GONE,
    (Status.CONNECTING, "invalidate"): Status.GONE,
    (Status.CONNECTED, "on_unsubscribe"): Status.UNSUBSCRIBING,
    (Status.CONNECTED, "on_disconnect"): Status.GONE,
    (Status.CONNECTED, "invalidate"): Status.GONE,
    (Status.CONNECTED, "ping timeout"): Status.GONE,
    (Status.UNSUBSCRIBING, "final progress confirmed"): Status.GONE,
    (Status.UNSUBSCRIBING, "unsubscribe timeout"): Status.GONE,
    (Status.UNSUBSCRIBING, "on_disconnect"): Status.GONE,
    (Status.UNSUBSCRIBING, "invalidate"): Status.GONE,
    (Status.UNSUBSCRIBING, "ping timeout"): Status.GONE,
}
"""Every change of a borrower's status, by what causes it."""

UNIT_TRANSITIONS: Final[dict[tuple[UnitStatus, str], UnitStatus]] = {
    (UnitStatus.ABSENT, "grant"): UnitStatus.GRANTED,
    (UnitStatus.GRANTED, "revoke"): UnitStatus.REVOKING,
    (UnitStatus.GRANTED, "on_unsubscribe"): UnitStatus.REVOKING,
    (UnitStatus.GRANTED, "borrower gone"): UnitStatus.ABSENT,
    (UnitStatus.REVOKING, "revoked"): UnitStatus.ABSENT,
    (UnitStatus.REVOKING, "borrower gone"): UnitStatus.ABSENT,
}
"""Every change of a unit's status at its borrower."""
