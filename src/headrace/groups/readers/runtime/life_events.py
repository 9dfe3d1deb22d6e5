"""What one life of a reader needs of whoever reads for it, and whom it tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from headrace.errors import HeadraceError
from headrace.groups.consumer import OwnedUnit, UnitStanding
from headrace.groups.delivery import Stalled
from headrace.groups.owner import UnitSink
from headrace.host import Host

if TYPE_CHECKING:
    from headrace.groups.readers.runtime.life import ReaderLife


class LifeUnits(UnitSink, Protocol):
    """What reads the segments of a life: a consumer, or a Spark query."""

    valid_until_s: float

    def standings(self, units: Iterable[str]) -> Mapping[str, UnitStanding]:
        """Where those of the units stand that are open."""
        ...


class LifeEvents(Protocol):
    """What a life tells the reader that it belongs to."""

    host: Host
    reader: str

    def assigned(self, segments: tuple[str, ...]) -> None:
        """Segments are read from now on."""
        ...

    def revoked(self, segments: tuple[str, ...]) -> None:
        """Segments are read no longer."""
        ...

    def life_over(self, life: ReaderLife) -> None:
        """It was put offline."""
        ...

    def stalls(self, life: ReaderLife, stall: Stalled, unit: OwnedUnit) -> None:
        """The application holds events and answers none."""
        ...

    def stream_gone(self, error: HeadraceError) -> None:
        """A stream was deleted, or made anew."""
        ...

    async def may_answer(self, checkpoint: str, positions: dict[str, int]) -> bool:
        """Whether a checkpoint may be answered now; if not, it is asked again."""
        ...
