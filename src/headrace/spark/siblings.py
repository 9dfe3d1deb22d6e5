"""Partition jobs of one stream in one process: what one of them reads, it reads for all.

Every job plans and commits for its own group.  A job that is about to read asks which of the
others would read the same: those are *carried along*, so that their rows come from the same pass
over the source.  Meanwhile their own threads wait.  A job that is elsewhere, because its queue is
full or it has just begun, goes its own way at the same time, until they meet again.

One of them plans at a time, so two jobs that were woken by the same news do not both go off alone.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

J = TypeVar("J", bound=Hashable)


class Siblings(Generic[J]):
    """The jobs at work on one stream; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._gate = threading.Condition()
        self._at_work: set[J] = set()
        self._reading: set[J] = set()
        """Jobs that read for themselves."""
        self._carried: dict[J, object] = {}
        """Jobs that are carried along, each with a token of its own."""

    @contextmanager
    def joined(self, job: J) -> Iterator[None]:
        """While a job is at work, others may carry it along."""
        with self._gate:
            self._at_work.add(job)
        try:
            yield
        finally:
            with self._gate:
                self._at_work.discard(job)
                self._carried_to_the_end(job)

    @contextmanager
    def planning(self, job: J) -> Iterator[list[J] | None]:
        """Plan alone; gives the others that may be carried along.

        None if the job itself was carried along just now, and there is nothing to plan.
        """
        with self._gate:
            if self._carried_to_the_end(job):
                yield None
                return
            taken = self._reading | self._carried.keys() | {job}
            yield [other for other in self._at_work if other not in taken]

    def begin(self, job: J, along: Iterable[J]) -> None:
        """Within ``planning``: the job goes off to read, also for others."""
        self._reading.add(job)
        self._carried.update((other, object()) for other in along)

    def end(self, job: J, along: Iterable[J]) -> None:
        """It is done with that."""
        with self._gate:
            self._reading.discard(job)
            for other in along:
                del self._carried[other]
            self._gate.notify_all()

    def _carried_to_the_end(self, job: J) -> bool:
        """Wait while the job is carried along; a next time is not waited for."""
        token = self._carried.get(job)
        if token is None:
            return False
        self._gate.wait_for(lambda: self._carried.get(job) is not token)
        return True
