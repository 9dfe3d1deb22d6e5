"""What stands between a program and its real catalog: refuses, is slow, and loses answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.catalog import Tx
from headrace.catalog.committer import Committer, Operation, nobody
from headrace.errors import CatalogUnavailableError
from headrace.sim.faults import Fault

if TYPE_CHECKING:
    from headrace.sim.programs.program import Program

REFUSE_PROBABILITY = 0.02
REFUSE_READ_PROBABILITY = 0.005
LOSE_PROBABILITY = 0.02
SLOW_PROBABILITY = 0.05
SLOW_MS_MAX = 400
HANGS_PROBABILITY = 0.1
"""How many of the slow commits hang past the lease of whoever makes them."""
HANGS_MS = (4000, 25_000)


class FaultyCommitter:
    """Stands where the :class:`~headrace.catalog.committer.Committer` of a catalog stood.

    A slow commit holds up all later ones; none overtakes another.
    """

    def __init__(self, program: Program, committer: Committer) -> None:
        self._program = program
        self._life = program.incarnation
        self._committer = committer
        self._waiting: deque[Operation] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._committer, name)

    def submit(self, operation: Operation) -> None:
        """Commit now, or after a while."""
        if self._waiting or self._is_slow():
            self._waiting.append(operation)
        else:
            self._commit([operation])

    def attempt(self, operations: list[Operation]) -> bool:
        """Commit now, unless the store is slow."""
        if self._waiting or self._is_slow():
            return False
        self._commit(operations)
        return True

    def run(self, fn: Callable[[Tx], Any], locks: tuple[str, ...], sync: bool) -> Any:
        """Commit what a thread waits for."""
        self._catch_up()
        operation = Operation(fn, locks, sync, nobody)
        self._commit([operation])
        if operation.error is not None:
            raise operation.error
        return operation.result

    def _is_slow(self) -> bool:
        world = self._program.world
        hangs = world.rng.random() < HANGS_PROBABILITY
        delay_ms = world.rng.randint(*(HANGS_MS if hangs else (1, SLOW_MS_MAX)))
        if not world.faults.strikes(Fault.SLOW, SLOW_PROBABILITY):
            return False
        life = self._life

        def go_on() -> None:
            if self._program.incarnation == life:
                self._program.inject(self._catch_up)

        world.call_in(delay_ms, go_on)
        return True

    def _catch_up(self) -> None:
        while self._waiting:
            self._commit([self._waiting.popleft()])

    def _commit(self, operations: list[Operation]) -> None:
        world = self._program.world
        refused = world.faults.strikes(Fault.REFUSE, REFUSE_PROBABILITY)
        lost = world.faults.strikes(Fault.LOSE, LOSE_PROBABILITY)
        if refused:
            self._program.note("is refused by the store")
            for operation in operations:
                _fail(operation, "refused")
            return
        self._program.committing()
        if not lost:
            self._committer.attempt(operations)
            self._program.committed()
            return
        answers = [operation.done for operation in operations]
        for operation in operations:
            operation.done = nobody
        self._committer.attempt(operations)
        self._program.note("loses an answer of the store")
        self._program.committed()
        for operation, done in zip(operations, answers, strict=True):
            operation.done = done
            _fail(operation, "the answer was lost")


def faulty_reads(program: Program, read: Callable[..., Any]) -> Callable[..., Any]:
    """A catalog's ``read`` that is refused now and then."""

    def faulty(fn: Callable[[Tx], Any], *, snapshot: bool = False) -> Any:
        if program.world.faults.strikes(Fault.REFUSE, REFUSE_READ_PROBABILITY):
            program.note("is refused a read by the store")
            raise CatalogUnavailableError("simulated: a read was refused")
        return read(fn, snapshot=snapshot)

    return faulty


def _fail(operation: Operation, why: str) -> None:
    operation.result = None
    operation.error = operation.error or CatalogUnavailableError(f"simulated: {why}")
    operation.done(None, operation.error)
