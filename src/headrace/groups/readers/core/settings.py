"""The config of a reader group, kept in its state, and the timers of a reader.

After a claim or a release a reader waits before its next one: the most loaded releases first and
the least loaded claims first.  The wait is the reader's rank spread over ``balance_ms``, so the
order is kept and the last in rank waits a moment, however many readers there are.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from headrace.errors import InvalidReaderUpdateError

_MS_MAX = 86_400_000


class Retain(StrEnum):
    """What a group asks retention to keep."""

    NOTHING = "nothing"
    POSITIONS = "positions"
    CHECKPOINT = "checkpoint"
    """From the last checkpoint on, so that a reset to it finds its events."""
    MANUAL = "manual"
    """From the cut that the application released last."""


def _check(settings: msgspec.Struct, low: int, high: int, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(settings, name)
        if type(value) is not int or not low <= value <= high:
            raise InvalidReaderUpdateError(
                f"{name} is {value!r}; it must be a whole number, {low} to {high}"
            )


class GroupConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all readers of a group must agree on."""

    checkpoints_outstanding_max: int = 3
    """Checkpoints of the application that may wait for readers; as many silent ones."""
    checkpoints_kept_max: int = 3
    """Complete checkpoints that can still be asked for by name, of either kind."""
    lag_assumed_ms: int = 30_000
    """Lags below this count as this: small differences are no reason to move segments."""
    retain: Retain = Retain.POSITIONS
    checkpoint_every_ms: int = 0
    """How often a checkpoint is taken by itself; 0: never."""

    def __post_init__(self) -> None:
        counts = ("checkpoints_outstanding_max", "checkpoints_kept_max")
        _check(self, 1, 100, counts)
        _check(self, 1, _MS_MAX, ("lag_assumed_ms",))
        _check(self, 0, _MS_MAX, ("checkpoint_every_ms",))


class ReaderSettings(msgspec.Struct, frozen=True):
    """Timers of a reader."""

    balance_ms: int = 200
    """Ranks are spread over this time, for claims and for releases."""
    join_delay_ms: int = 100
    """A new reader waits this long before its first claim, so that readers who start together
    share from the beginning and the first of them does not take everything."""
    lag_unit_ms: int = 1000
    """A reader writes its lag once in (number of readers + 1) times this."""
    refresh_ms: int = 3000
    """A reader looks at the state at least this often, whatever it hears from watching."""
    record_ms: int = 30_000
    """A reader records its positions this often, without any checkpoint; from ten readers on, rarer
    with their number, since the stored progress knows better anyway."""
    answer_ms: int = 2000
    """An update without an answer is decided anew after this."""
    lease_ttl_ms: int = 10_000
    heartbeat_ms: int = 3000
    detect_spread_ms: int = 150
    """When a lease runs out, readers look for dead ones in turn, spread over this time."""

    def __post_init__(self) -> None:
        _check(self, 1, _MS_MAX, self.__struct_fields__)
        if self.heartbeat_ms * 2 > self.lease_ttl_ms:
            raise InvalidReaderUpdateError(
                f"heartbeat_ms is {self.heartbeat_ms}; it must be at most half of "
                f"lease_ttl_ms ({self.lease_ttl_ms})"
            )
