"""When a Spark query that is a reader counts as stalled.

The process that plans a query may live on while the query does not: its driver is frozen, or hangs.
The lease goes on then, and nobody else reads what it has.  Only the query knows how rare its
triggers are and how long a batch may take, so it says for how long it may be silent.  Silence is
that Spark asks for nothing, waits for no answer, and no sink counts a batch.  It matters only while
somebody could go on with what is held: a batch is planned or open, or there is something to read.
"""

from __future__ import annotations


class SparkSilence:
    """How long nothing was heard of a query; a limit of 0 lets it be silent for ever.

    >>> silence = SparkSilence(1000, now_ms=0)
    >>> silence.is_stalled(999, waiting=True), silence.is_stalled(1000, waiting=True)
    (False, True)
    """

    def __init__(self, limit_ms: int, now_ms: int) -> None:
        self._limit_ms = limit_ms
        self._heard_ms = now_ms
        self._asking = 0

    def asked(self, now_ms: int) -> None:
        """Spark asks for something, and waits."""
        self._asking += 1
        self._heard_ms = now_ms

    def answered(self, now_ms: int) -> None:
        """Spark has its answer."""
        self._asking -= 1
        self._heard_ms = now_ms

    def heard(self, now_ms: int) -> None:
        """A sign of life: a sink counted a batch, or Spark was answered at once."""
        self._heard_ms = now_ms

    def is_stalled(self, now_ms: int, *, waiting: bool) -> bool:
        """Whether others should go on; `waiting` tells that there is something to go on with."""
        silent_ms = now_ms - self._heard_ms
        return bool(self._limit_ms and waiting and not self._asking and silent_ms >= self._limit_ms)

    def look_at_ms(self, now_ms: int) -> int | None:
        """When to ask again; None: never."""
        if not self._limit_ms:
            return None
        due_ms = self._heard_ms + self._limit_ms
        return due_ms if due_ms > now_ms and not self._asking else now_ms + self._limit_ms
