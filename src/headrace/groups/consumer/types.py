"""The interfaces of a consumer: its units, its options, and what it calls (owner, ack store)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headrace.catalog import Tx
from headrace.errors import Fenced, HeadraceError, InvalidDeliveryConfigError
from headrace.groups.delivery import DeliveryConfig, Stalled
from headrace.groups.progress import Progress
from headrace.host.outage import OUTAGE_MS
from headrace.subjects.arguments import check_fields

MiB = 1024 * 1024

Done = Callable[[list[Fenced | None], BaseException | None], None]
"""Callback with the results of a commit: per ack None or why it does not count; or an error."""


class OwnedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit as its owner hands it to the consumer."""

    group: str
    """The name under which claims and progress are kept in the catalog."""
    unit: str
    """The claim's unit; unique within a consumer."""
    token: int
    stream: str
    segment: int
    segment_id: int
    progress: Progress
    """At the time of the claim."""
    filter: str | tuple[str, ...] | None = None
    """The group's subject filter, or several of which one must pass; what does not pass counts as
    acked."""
    strip: int = 0
    """Leading subject tokens that the application does not see."""
    order_by: tuple[int, ...] | None = None
    """Places (from 1, of the stored subject) of the tokens whose events are kept in order, instead
    of the key of the event; () is the whole subject."""
    end: int | None = None
    """Read up to this offset and no further, as if the segment were sealed there."""

    @property
    def at_end(self) -> bool:
        """Whether everything up to ``end`` was acked before it was opened."""
        return self.end is not None and self.progress.floor >= self.end


class UnitStanding(msgspec.Struct, frozen=True):
    """Where a unit stands in the hands of its consumer."""

    floor: int
    """Everything below is acked; at rest that is stored, too."""
    at_rest: bool
    """Nothing of it is in flight, and every answer is stored."""


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer behaves, the same for all of its units."""

    delivery: DeliveryConfig = DeliveryConfig()
    """Limits of each unit."""
    prefetch_bytes: int = 16 * MiB
    """Events that are held, fetched ahead or in the hands of the application, in all units."""
    durable_acks: bool = False
    """Whether a commit of acks waits for the disk."""
    ack_delay_ms: int = 5
    """How long ``ack_soon`` may gather before it is committed."""
    batch_events_max: int = 65_536
    """Events in one Arrow batch."""
    outage_ms: int = OUTAGE_MS
    """How long a catalog or store that is away is waited for, until the loop over events raises."""
    dead_letters: str | None = None
    """The dead-letter stream; by default ``<group>.dead``."""
    member: str = ""
    """Who consumes, for the decision log and the headers of dead letters."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, low in (
            ("prefetch_bytes", 1),
            ("ack_delay_ms", 0),
            ("batch_events_max", 1),
            ("outage_ms", 0),
        ):
            if getattr(self, name) < low:
                raise InvalidDeliveryConfigError(
                    f"{name} is {getattr(self, name)}; it must be at least {low}"
                )


class UnitAck(msgspec.Struct, frozen=True):
    """A unit and what is to be stored of it.

    In a commit ``progress`` is all that the consumer knows; within a transaction it is only what
    that transaction acks.  A store joins it with what it has, so neither loses anything.
    """

    unit: OwnedUnit
    progress: Progress
    refused: bool = False
    """The application itself has refused events; others came again because their time was over."""


class UnitEvents(Protocol):
    """What the owner of a unit hears of it; called on the event loop, and must not block."""

    def drained(self, unit: OwnedUnit, progress: Progress) -> None:
        """Nothing of the unit is in flight any more, and its progress is stored: release it."""
        ...

    def fenced(self, unit: OwnedUnit) -> None:
        """An ack was refused: somebody else owns the unit, and the consumer has dropped it."""
        ...

    def stalled(self, unit: OwnedUnit, stall: Stalled) -> None:
        """The application holds events of the unit and has answered none for too long."""
        ...

    def finished(self, unit: OwnedUnit) -> None:
        """The segment is sealed, or the unit has an end: all below is acked and stored."""
        ...

    def rested(self, unit: OwnedUnit, progress: Progress) -> None:
        """Nothing of a paused unit is in flight any more, and every answer is stored."""
        ...

    def stream_gone(self, unit: OwnedUnit, error: HeadraceError) -> None:
        """The stream of the unit was deleted, or made anew."""
        ...


class AckStore(Protocol):
    """Where acks are committed."""

    def begin(self, acks: Sequence[UnitAck], done: Done, *, sync: bool) -> None:
        """Store progress; ``done`` is told on the event loop, after this has returned."""
        ...

    def stage(self, tx: Tx, ack: UnitAck) -> None:
        """Within a transaction: check the claim and join the acked ranges to what is stored.

        Raises :class:`~headrace.errors.Fenced` when the token is stale, and
        :class:`~headrace.errors.AlreadyAckedError` when any of it is acked already.
        """
        ...

    def locks(self, unit: OwnedUnit) -> list[str]:
        """The locks under which :meth:`stage` may run."""
        ...

    @property
    def repeats_transactions(self) -> bool:
        """Whether what a transaction staged has to go through :meth:`begin` as well."""
        ...
