"""What the committer and a database need of each other: operations, and who runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from headrace.catalog.calls import Call, Saying
from headrace.catalog.transaction import Tx

Done = Callable[[Any, BaseException | None], None]


class Operation:
    """A function to run in a write transaction, and whom to tell how it went."""

    __slots__ = ("aside", "channels", "done", "error", "fn", "locks", "result", "saying", "sync")

    def __init__(
        self,
        fn: Callable[[Tx], Any],
        locks: tuple[str, ...],
        sync: bool,
        done: Done,
        saying: Saying | None = None,
    ) -> None:
        self.fn = fn
        self.locks = locks
        self.sync = sync
        self.done = done
        self.saying = saying
        """Tells what ``fn`` would do, for drivers that make calls."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.channels: set[str] = set()
        self.aside = False
        """Whether whoever looks at the catalog now and then need not look again for it."""


class WriteDriver(ABC):
    """What the committer needs of a database; calls come from one thread at a time."""

    direct: bool
    """Whether a caller may commit on its own thread, where a signal may interrupt it."""

    calls = False
    """Whether it makes calls (:mod:`headrace.catalog.calls`)."""

    others = 0
    """How often it was seen that other connections had committed."""

    leave: Callable[[], object]
    """Leave the gate; a single call into C, for who is not inside too."""

    @abstractmethod
    def enter(self, *, wait: bool) -> bool:
        """Wait for this process's turn to write (fair between processes).

        Without ``wait`` only if nobody has to be waited for and no checkpoint is due; always false
        for a server, which an event loop must not wait for.
        """

    @abstractmethod
    def section(self) -> AbstractContextManager[object]:
        """What is held while the database is used."""

    @abstractmethod
    def begin(self, locks: Iterable[str], sync: bool) -> Tx: ...

    def call(
        self, calls: Sequence[Call], locks: Iterable[str], sync: bool, channels: set[str]
    ) -> list[Any] | None:
        """Make calls, at most one of them an append, in a transaction of their own.

        Returns their results, ``LONG_WAY`` for those that were left undone; None: none was made.
        """
        raise NotImplementedError

    @abstractmethod
    def savepoint(self) -> None: ...

    @abstractmethod
    def rollback_to_savepoint(self) -> bool:
        """Undo since the savepoint; false when the whole transaction is gone."""

    @staticmethod
    def is_late(error: BaseException) -> bool:
        """Whether it may come of a statement of :meth:`Tx.later`, made earlier than it failed."""
        del error
        return False

    @abstractmethod
    def commit(self, channels: set[str]) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def committed(self, channels: set[str]) -> None:
        """Notify the waiters; called after the gate was left."""

    def look(self) -> None:  # noqa: B027 (a server tells by itself)
        """Count ``others``; beside every commit, which does that too."""

    def chores(self) -> None:  # noqa: B027 (most need none)
        """Maintenance between two groups, after all callers were answered."""

    @abstractmethod
    def translate(self, error: BaseException) -> BaseException: ...

    @abstractmethod
    def close(self) -> None: ...


LONG_WAY = object()
"""The result of a call that was left undone."""


def nobody(result: object, error: BaseException | None) -> None:
    """No callback: the caller reads the result from the operation."""
    del result, error
