"""What the cores of a region ask of their runtime and tell it, with the reasons they give."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from headrace.errors import RegionError
from headrace.regions.core.markers import Marker


class SkipReason(StrEnum):
    """Why no periodic snapshot was taken."""

    TOO_SOON = "the interval has not passed"
    PENDING = "another snapshot is under way"
    NO_MEMBERS = "the stream is not replicated to another region"
    NO_TRAFFIC = "no event came since the last completed snapshot began"
    DISCONNECTED = "a member cannot be reached"


class AbortReason(StrEnum):
    """Why a snapshot was given up."""

    TIMEOUT = "a member did not answer in time"
    MEMBERS = "the members changed"


class SnapshotSettings(msgspec.Struct, frozen=True):
    """How often, and for how long at most."""

    interval_ms: int = 1000
    timeout_ms: int = 30_000
    pending_max: int = 4


class Append(msgspec.Struct, frozen=True, gc=False):
    """Effect: write a marker to the local log, then hand it to the cores with its position."""

    marker: Marker


class SnapshotAborted(msgspec.Struct, frozen=True):
    """Effect: a snapshot was given up, and why; ``waited_for`` had not answered."""

    snapshot_id: str
    reason: AbortReason
    waited_for: tuple[str, ...]


class SnapshotSkipped(msgspec.Struct, frozen=True):
    """Effect: no snapshot was taken, and why."""

    reason: SkipReason
    regions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MarkerRefused:
    """Effect: a marker of the log made no sense here and changed nothing; the error says why."""

    error: RegionError


RegionEffect = Append | SnapshotAborted | SnapshotSkipped | MarkerRefused


class AtRisk(msgspec.Struct, frozen=True):
    """Events of ``lane`` from ``sequence`` on that ``region`` has at or below ``position``.

    Nobody can vouch that the consumers here have met them.
    """

    region: str
    position: int
    lane: str
    sequence: int


class Forced(msgspec.Struct, frozen=True):
    """What an operator is told who did not wait for all: who was missing and what is at risk.

    By position alone the events at risk would be skipped.  The snapshot carries what was seen
    here, so a region that applies it keeps them as holes: they come again, and none is lost.
    """

    snapshot_id: str
    missing: tuple[str, ...]
    at_risk: tuple[AtRisk, ...]
    effects: tuple[RegionEffect, ...]
