"""The JSON of epochs.

A time is a number, or a list of them where epochs have several; a frontier is a list of times.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from headrace.groups.findings import moment

if TYPE_CHECKING:
    from headrace.epochs.runtime.status import EpochStatus, PublisherStatus, SubscriptionStatus
    from headrace.epochs.runtime.subscriptions import EpochSubscriptionInfo

EpochTime = int | tuple[int, ...]
EpochFrontier = tuple[EpochTime, ...]


class PublisherShape(msgspec.Struct, frozen=True, kw_only=True):
    """A publisher: what it holds, who it is, and whether the others wait for it."""

    publisher: str
    held: EpochFrontier
    state: str
    """``active``; ``lost``: its lease ran out and it did not leave; ``left``: it gave the lease
    back and holds its times; ``awaited``: it was declared and never came; ``query``: it belongs to
    a Spark query, which may run or not."""
    instance: str | None
    committed_at: datetime | None
    """When it last committed something."""
    lost_at: datetime | None
    """When its lease ran out, if it is lost."""
    holds_back: bool
    """Whether the stream's frontier stands where it does because of what this one holds."""
    advice: str
    """What to do if it holds the frontier back for too long."""


class EpochReaderShape(msgspec.Struct, frozen=True, kw_only=True):
    """How far a named subscription is behind; what is merely open does not count."""

    subscription: str
    frontier: EpochFrontier | None
    """All before it is acked; null while its start is being chosen."""
    held: bool
    """Whether a program holds it now."""
    lag_epochs: int
    lag_events: int
    lag_seconds: float
    """For how long its next epoch has been complete."""
    exact: bool
    """False where there was too much to look at: the count is a lower bound then."""


class OpenEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch that has rows and is not complete."""

    epoch: EpochTime
    open_events: int


class EpochStreamShape(msgspec.Struct, frozen=True, kw_only=True):
    """How an epoch stream stands."""

    stream: str
    state: str
    """``open``, ``closed`` or ``aborted``."""
    reason: str
    """Of an aborted one."""
    frontier: EpochFrontier
    """What lies before it is complete."""
    readable_from: EpochFrontier
    """The first frontier from which everything can be read."""
    upper: EpochFrontier
    """The greatest times that rows ever had."""
    moved_at: datetime | None
    """When the frontier came to where it is."""
    seen_at: datetime
    open: tuple[OpenEpoch, ...]
    """The first ones."""
    open_epochs: int
    open_events: int
    exact: bool
    """False where there was too much to look at: the count is a lower bound then."""
    publishers: tuple[PublisherShape, ...]
    subscriptions: tuple[EpochReaderShape, ...]


class EpochExplanation(EpochStreamShape, frozen=True, kw_only=True):
    """How an epoch stream stands, and why."""

    lines: tuple[str, ...]
    """In words: who holds the frontier back, and what to do."""


class EpochSubscriptionShape(msgspec.Struct, frozen=True, kw_only=True):
    """A named subscription to epochs."""

    subscription: str
    streams: tuple[str, ...]
    mode: str
    start: str
    segments: tuple[int, ...] | None
    frontier: EpochFrontier | None
    """All before it is acked; null while its start is being chosen."""
    held: bool
    """Whether a program holds it now."""
    created_at: datetime
    moved_at: datetime
    expiry_ms: int | None
    """After how long without a holder it is forgotten; null: never."""


class PublishedRows(msgspec.Struct, frozen=True, kw_only=True):
    """What a publisher put in, and where it is now."""

    stream: str
    publisher: str
    published_events: int
    frontier: EpochFrontier


class AdvancedPublisher(msgspec.Struct, frozen=True, kw_only=True):
    """Where a publisher is now."""

    stream: str
    publisher: str
    frontier: EpochFrontier


class EndedPublisher(msgspec.Struct, frozen=True, kw_only=True):
    """A publisher of which nothing more comes."""

    stream: str
    publisher: str
    ended: str
    """``closed``, ``released``, ``rolled back`` or ``aborted``."""
    reason: str = ""
    """Of an aborted one."""


class CompleteEpoch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The line after the rows of an epoch."""

    complete: EpochTime
    epoch_events: int
    token: str | None = None
    """Where a read can go on; not there where nothing is stored."""


def stream_shape(found: EpochStatus) -> EpochStreamShape:
    """An epoch stream for programs."""
    return EpochStreamShape(
        stream=found.stream,
        state=found.status,
        reason=found.reason,
        frontier=found.frontier,
        readable_from=found.since,
        upper=found.upper,
        moved_at=_moment(found.moved_us),
        seen_at=moment(found.now_us),
        open=tuple(OpenEpoch(epoch=time, open_events=rows) for time, rows in found.open),
        open_epochs=found.open_epochs,
        open_events=found.open_rows,
        exact=not found.open_at_least,
        publishers=tuple(map(_publisher, found.publishers)),
        subscriptions=tuple(map(_reader, found.subscriptions)),
    )


def explained(found: EpochStatus, lines: Iterable[str]) -> EpochExplanation:
    """An explanation for programs."""
    return EpochExplanation(**msgspec.structs.asdict(stream_shape(found)), lines=tuple(lines))


def _publisher(found: PublisherStatus) -> PublisherShape:
    return PublisherShape(
        publisher=found.name,
        held=found.held,
        state=found.state,
        instance=found.owner,
        committed_at=_moment(found.last_commit_us),
        lost_at=_moment(found.lost_us),
        holds_back=found.holds_back,
        advice=found.advice,
    )


def _reader(found: SubscriptionStatus) -> EpochReaderShape:
    return EpochReaderShape(
        subscription=found.name,
        frontier=found.frontier,
        held=found.held,
        lag_epochs=found.epochs,
        lag_events=found.rows,
        lag_seconds=found.behind_us / 1e6,
        exact=not found.at_least,
    )


def subscription_shape(found: EpochSubscriptionInfo) -> EpochSubscriptionShape:
    """A named subscription for programs."""
    return EpochSubscriptionShape(
        subscription=found.name,
        streams=found.streams,
        mode=found.mode,
        start=found.start,
        segments=found.segments,
        frontier=found.frontier,
        held=found.held,
        created_at=moment(found.created_us),
        moved_at=moment(found.moved_us),
        expiry_ms=found.expiry_ms,
    )


def _moment(us: int | None) -> datetime | None:
    return None if us is None else moment(us)
