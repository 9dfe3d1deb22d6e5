"""Times and limits of shared groups.

The defaults keep one promise between them: a borrower counts its leader as lost
`ping_timeout_ms` after the last answered ping was *sent*, a leader drops a borrower
`borrower_timeout_ms` after the last ping *arrived*, and the first is shorter by more than clocks
drift.  So a borrower that runs at all stops before its units are given to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from headrace.errors import InvalidInputError

FAR_MS = 2**63 - 1
"""When a thing is due that never is."""


class Balance(StrEnum):
    """What a fair share is measured in."""

    COUNT = "count"
    LAG = "lag"


class InvalidSharedSettingsError(InvalidInputError):
    """A time or limit of a shared group is out of range."""


def _check_positive(settings: msgspec.Struct, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(settings, name)
        if type(value) is not int or not 1 <= value <= 86_400_000:
            raise InvalidSharedSettingsError(
                f"{name} is {value!r}; it must be an integer, 1 to 86400000"
            )


class BorrowerSettings(msgspec.Struct, frozen=True):
    """Timers of a borrower."""

    find_leader_ms: int = 1000
    ping_ms: int = 1000
    ping_timeout_ms: int = 4000
    resend_ms: int = 1000
    """A report that is not confirmed is sent again after this."""
    unsubscribe_timeout_ms: int = 1000
    unsubscribe_resend_ms: int = 250
    settle_timeout_ms: int = 15_000
    """How long an ack whose leader was lost waits to learn whether it counts."""

    def __post_init__(self) -> None:
        _check_positive(self, self.__struct_fields__)


class LeaderSettings(msgspec.Struct, frozen=True):
    """Timers and limits of a leader."""

    tick_ms: int = 250
    """How often the runtime calls ``tick``; nothing urgent waits for it."""
    resend_ms: int = 1000
    renew_segments_ms: int = 1000
    borrower_timeout_ms: int = 5000
    revoke_timeout_ms: int = 10_000
    """A borrower that does not finish a revoked unit in this time is evicted."""
    stall_timeout_ms: int = 60_000
    """A borrower that has events of a unit and acks none of them for this long is evicted."""
    bench_ms_max: int = 600_000
    """An evicted session gets nothing for `stall_timeout_ms`, doubling up to this."""
    commit_timeout_ms: int = 2000
    lease_ttl_ms: int = 10_000
    heartbeat_ms: int = 3000
    balance: Balance = Balance.COUNT
    lag_slack_percent: int = 20
    """By lag: a share may exceed the mean by this much before units move."""
    decisions_max: int = 256

    def __post_init__(self) -> None:
        names = tuple(name for name in self.__struct_fields__ if name != "balance")
        _check_positive(self, names)
        if self.heartbeat_ms * 2 > self.lease_ttl_ms:
            raise InvalidSharedSettingsError(
                f"heartbeat_ms is {self.heartbeat_ms}; it must be at most half of "
                f"lease_ttl_ms ({self.lease_ttl_ms})"
            )


def changed_settings(settings: LeaderSettings, changes: Mapping[str, int]) -> LeaderSettings:
    """The settings with some of them changed, by name.

    >>> changed_settings(LeaderSettings(), {"stall_timeout_ms": 120_000}).stall_timeout_ms
    120000
    """
    known = [name for name in settings.__struct_fields__ if name != "balance"]
    for name in changes:
        if name not in known:
            raise InvalidSharedSettingsError(
                f"a shared group has no setting {name!r}; there are {', '.join(known)}"
            )
    return msgspec.structs.replace(settings, **changes)
