"""Small appends that wait for the end of a turn of the event loop, to be written as one."""

from __future__ import annotations

import asyncio
from functools import partial

from headrace.catalog.committer import Operation
from headrace.catalog.producers import Placed
from headrace.errors import HeadraceError
from headrace.log.append import Outcome, Write
from headrace.log.joined import Joined, join

Answer = asyncio.Future[tuple[Placed, ...]]


class Apart(HeadraceError):
    """Internal: appends could not be joined; each has to be written by itself."""


class Appends:
    """The appends of one turn."""

    def __init__(self) -> None:
        self._waiting: dict[Write, Answer] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, write: Write) -> Answer:
        """The future gives where the events are, or raises ``Apart`` or ``Stale``."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._waiting[write] = answer
        return answer

    def take(self) -> list[Operation]:
        """All of them, prepared, in as few operations as may be."""
        waiting, self._waiting = self._waiting, {}
        operations = []
        for writes in join(list(waiting)):
            answers = [waiting[write] for write in writes]
            try:
                joined = Joined(writes)
                joined.prepare()
            except Exception as error:
                # Of several, one is at fault, and only that one is to hear of it.
                _fail(answers, error if len(writes) == 1 else Apart(str(error)))
                continue
            tell = partial(_tell, joined, answers)
            operations.append(Operation(joined.run, tuple(joined.locks), True, tell))
        return operations


def _tell(
    joined: Joined, answers: list[Answer], outcome: Outcome, error: BaseException | None
) -> None:
    if error is not None:
        _fail(answers, error)
        return
    for answer, placed in zip(answers, joined.placed(outcome), strict=True):
        if not answer.done():
            answer.set_result(placed)


def _fail(answers: list[Answer], error: BaseException) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
