"""Reports of a session that are not confirmed, and the commits that wait for them.

A commit of acks is over when the verdict on each of its reports is known.  That is told by a
callback, not by a task or a future, each of which takes another turn of the event loop: an
application that acks one batch at a time waits for every turn, and in each of them the threads that
read ahead may take the GIL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headrace.errors import AckUnsettledError, Fenced
from headrace.groups.consumer import OwnedUnit, UnitAck
from headrace.groups.consumer.types import Done
from headrace.groups.shared.core.messages import Ranges
from headrace.groups.shared.runtime.settling import Verdict


class Report:
    """Ranges that were reported, and the commits that wait for their confirmation."""

    __slots__ = ("commits", "left", "verdict")

    def __init__(self, ranges: Ranges) -> None:
        self.left = set(ranges)
        self.verdict: Verdict | None = None
        self.commits: list[Waiting] = []

    def tell(self, verdict: Verdict) -> None:
        """The verdict is known: tell the commits that wait; only the first one counts."""
        if self.verdict is None:
            self.verdict = verdict
            for commit in self.commits:
                commit.decided()


class Waiting:
    """A commit of acks: for each its report, or the verdict if that was known at once."""

    __slots__ = ("_acks", "_done", "_found", "_later", "_open")

    def __init__(
        self,
        acks: Sequence[UnitAck],
        found: list[Report | Verdict],
        done: Done,
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._acks = acks
        self._found = found
        self._done = done
        self._later = later
        undecided = [r for r in found if isinstance(r, Report) and r.verdict is None]
        for report in undecided:
            report.commits.append(self)
        self._open = len(undecided)
        if not undecided:
            asyncio.get_running_loop().call_soon(self._tell)

    def decided(self) -> None:
        """The verdict on one of the reports is known; after the last one, tell the result."""
        self._open -= 1
        if not self._open:
            self._later(self._tell)

    def _tell(self) -> None:
        results: list[Fenced | None] = []
        unknown = []
        for ack, each in zip(self._acks, self._found, strict=True):
            verdict = each.verdict if isinstance(each, Report) else each
            if verdict is Verdict.UNKNOWN:
                unknown.append(ack.unit.unit)
            results.append(_fenced(ack.unit) if verdict is Verdict.DOES_NOT else None)
        if unknown:
            self._done([], AckUnsettledError(tuple(unknown)))
        else:
            self._done(results, None)


def _fenced(unit: OwnedUnit) -> Fenced:
    return Fenced(unit.group, unit.unit, unit.token)
