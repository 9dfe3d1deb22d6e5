"""What the runtimes of groups need of the program that they run in.

``headrace.open()`` gives an object that offers all of it; groups know only this much of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, Protocol, TypeVar

from headrace.catalog import Tx
from headrace.catalog.committer import Operation
from headrace.log.log import Log

P = ParamSpec("P")
T = TypeVar("T")


class Host(Protocol):
    """A log, threads for what blocks, and transactions in a group with others."""

    @property
    def log(self) -> Log:
        """The synchronous log underneath."""
        ...

    async def in_thread(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run something that blocks on a thread."""
        ...

    def in_transaction(
        self,
        fn: Callable[[Tx], T],
        locks: Iterable[str] = (),
        *,
        sync: bool = True,
        small: bool = False,
    ) -> asyncio.Future[T]:
        """Run ``fn`` in a write transaction; ``small`` ones take a quicker way if there is one."""
        ...

    def attempt(
        self, fn: Callable[[Tx], object], locks: Iterable[str], *, sync: bool = True
    ) -> Operation | None:
        """Commit something small at once, if that is quick: its result or error is in what is
        returned.  None means that nothing was done."""
        ...

    def submit(
        self,
        fn: Callable[[Tx], object],
        locks: Iterable[str],
        done: Callable[[Any, BaseException | None], None],
        *,
        sync: bool = True,
        small: bool = False,
    ) -> None:
        """The same at once and without a future; ``done`` is called on the event loop."""
        ...
