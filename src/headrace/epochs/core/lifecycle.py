"""The states of an epoch and of a subscription, as the tables that diagrams are drawn from.

An epoch is *latent* until a partition publishes in it, *active* until the lower frontier has left
it behind, and *completed* from then on; one in which nothing was published goes straight from the
first to the last.  A publisher does not store these states: they follow from its frontiers
(:meth:`headrace.epochs.core.publisher.Publisher.state`), and a test holds every step against the
table.

A subscription is *awaiting* snapshots, then *live*, and ends in one of four ways that a consumer
must be able to tell apart.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class EpochState(StrEnum):
    """How far an epoch is, as its publisher sees it."""

    LATENT = "latent"
    ACTIVE = "active"
    COMPLETED = "completed"


EPOCH_TRANSITIONS: Final[dict[tuple[EpochState, str], EpochState]] = {
    (EpochState.LATENT, "first batch"): EpochState.ACTIVE,
    (EpochState.LATENT, "frontier passes it unused"): EpochState.COMPLETED,
    (EpochState.ACTIVE, "frontier passes it"): EpochState.COMPLETED,
}


class Standing(StrEnum):
    """How a subscription stands."""

    AWAITING = "awaiting"
    LIVE = "live"
    CLOSED = "closed"
    REACHED = "reached"
    ABORTED = "aborted"
    FULL = "full"


class Cause(StrEnum):
    """What moves a subscription on."""

    SNAPSHOTS = "all snapshots are there"
    COMPLETE = "every partition is complete"
    UNTIL = "everything before until is complete"
    LOSS = "a partition ends with times held"
    FULL = "an epoch does not fit"


SUBSCRIPTION_TRANSITIONS: Final[dict[tuple[Standing, str], Standing]] = {
    (Standing.AWAITING, Cause.SNAPSHOTS): Standing.LIVE,
    (Standing.AWAITING, Cause.LOSS): Standing.ABORTED,
    (Standing.LIVE, Cause.COMPLETE): Standing.CLOSED,
    (Standing.LIVE, Cause.UNTIL): Standing.REACHED,
    (Standing.LIVE, Cause.LOSS): Standing.ABORTED,
    (Standing.LIVE, Cause.FULL): Standing.FULL,
    # What other partitions still send is judged as before; it does not bring the lost one back.
    (Standing.ABORTED, Cause.SNAPSHOTS): Standing.ABORTED,
    (Standing.ABORTED, Cause.FULL): Standing.FULL,
}
