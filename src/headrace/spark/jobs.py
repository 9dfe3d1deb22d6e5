"""The jobs of the pipeline: their interface, and their status.

A job moves data in rounds.  The supervisor gives it the Spark session (``start``), lets it work in
a thread of its own until told to stop (``run``), and asks now and then how it is doing
(``status``).  A job is stateless: whatever counts is in the catalog, so it may be stopped, killed
and started again at any point, here or on another machine.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITION: Final = "partition"
COMPACTION: Final = "compaction"
REPLICATION: Final = "replicate"
Kind = Literal["partition", "compaction", "replicate"]

RATE_WINDOW_S = 60.0


class JobSpec(msgspec.Struct, frozen=True, order=True):
    """A job that should run; a change of ``digest`` is a reason to start it anew."""

    kind: Kind
    target: str
    """The stream that is compacted, the key of the group whose stream is partitioned, or the region
    that is copied from."""
    digest: str = ""

    @property
    def name(self) -> str:
        """How the job is called.

        >>> JobSpec("compaction", "orders").name
        'compaction/orders'
        """
        return f"{self.kind}/{self.target}"


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is doing since it was started."""

    rounds: int = 0
    """Rounds that moved something, or that found nothing to do: either way it works."""
    events: int = 0
    rate_per_s: float = 0.0
    lag_events: int | None = None
    """Events that wait for it; None while that is not known."""
    note: str = ""


class Job(Protocol):
    """One job; only ``status`` may be called from another thread than the rest."""

    @property
    def name(self) -> str: ...

    def start(self, spark: SparkSession) -> None:
        """Get ready; raises what makes it impossible."""

    def step(self) -> bool:
        """One round; true while there may be more to do at once."""

    def run(self, stop: threading.Event) -> None:
        """Rounds until told to stop, waiting while there is nothing to do."""

    def status(self) -> JobStatus: ...


@runtime_checkable
class Joining(Protocol):
    """A job whose share others of its kind may do along with theirs, while it is at work."""

    def joined(self) -> AbstractContextManager[None]: ...


class Meter:
    """A rate per second over a sliding window of a minute; time is an argument."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._began_s: float | None = None
        self._seen: deque[tuple[float, int]] = deque()
        self.total = 0

    def add(self, count: int, now_s: float) -> None:
        if self._began_s is None:
            self._began_s = now_s
        self.total += count
        self._seen.append((now_s, count))
        self._forget(now_s)

    def rate_per_s(self, now_s: float) -> float:
        """The rate; over the meter's lifetime as long as that is shorter than the window."""
        self._forget(now_s)
        if self._began_s is None:
            return 0.0
        over_s = min(self._window_s, max(1.0, now_s - self._began_s))
        return sum(count for _, count in self._seen) / over_s

    def _forget(self, now_s: float) -> None:
        while self._seen and self._seen[0][0] < now_s - self._window_s:
            self._seen.popleft()
