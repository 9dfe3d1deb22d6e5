"""What a function that runs inside a catalog transaction may do.

SQL is written once, with ``?`` for parameters, in the dialect that SQLite and PostgreSQL
share; each driver supplies a ``Tx``.  A function handed to ``Catalog.write`` must be pure but
for its ``Tx``: it may run again when a commit has to be repeated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Row = tuple[Any, ...]
Query = tuple[str, tuple[object, ...]]
"""SQL with ``?`` for parameters, and the parameters."""
T = TypeVar("T")

IN_ONE_QUERY = 400


def in_parts(values: Sequence[T]) -> Iterator[tuple[Sequence[T], str]]:
    """Values in chunks for the ``IN (…)`` of several queries, each with its ``?`` marks."""
    for at in range(0, len(values), IN_ONE_QUERY):
        part = values[at : at + IN_ONE_QUERY]
        yield part, ", ".join("?" * len(part))


FREQUENT = "often:"
"""Prefix of throttled channels: they are notified at intervals, however often they change, and only
in processes that wait for one of them (:mod:`headrace.catalog.frequent`)."""


class CatalogClock:
    """The time of one catalog: the database's, unless somebody drives it."""

    __slots__ = ("driven_us",)

    def __init__(self) -> None:
        self.driven_us: Callable[[], int] | None = None


class Tx(ABC):
    """One transaction: reads and writes, the catalog's clock, and notifications."""

    lazy = False
    """Whether ``iterate`` fetches rows one by one as they are consumed, not all beforehand."""
    lateral = False
    """Whether a subquery in ``FROM`` may name the tables before it (``LATERAL``)."""
    for_update = ""
    """What a query ends with whose rows nobody else may change before this transaction is over;
    SQLite has one writer at a time and needs none."""
    by_bytes = ""
    """What a column of text is followed by in ``ORDER BY``, so that rows come in Python's order:
    who locks rows in several queries would else lock them in another order than who needs one."""

    def __init__(self, clock: CatalogClock | None = None) -> None:
        self.channels: set[str] = set()
        self._clock = clock or CatalogClock()

    @abstractmethod
    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""

    @abstractmethod
    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows."""

    @abstractmethod
    def row(self, sql: str, params: Sequence[Any] = ()) -> Row | None:
        """Run a statement and return its first row, if any."""

    @abstractmethod
    def iterate(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        """Run a query and yield its rows one by one, so that large values do not pile up."""

    @abstractmethod
    def executemany(self, sql: str, params: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each parameter row; returns how many rows were changed."""

    def later(self, sql: str, *params: Sequence[Any]) -> None:
        """Run a statement for each parameter row, whenever it suits the database.

        It is done before any other statement of this transaction; what it changed is not told.
        """
        if len(params) == 1:
            self.execute(sql, params[0])
        elif params:
            self.executemany(sql, params)

    def together(self, *queries: tuple[str, Sequence[Any]]) -> list[list[Row]]:
        """The rows of several queries."""
        return [self.rows(sql, params) for sql, params in queries]

    def foresee(self, *queries: tuple[str, Sequence[Any]]) -> None:  # noqa: B027
        """Tell which queries are about to be made: a server far away is asked all of them at once.

        No query may be foreseen that changes something.
        """

    @contextmanager
    def joining_many(self) -> Iterator[None]:
        """For queries that join many rows of tables of which the database may know nothing yet."""
        yield

    def settle(self) -> None:  # noqa: B027 (most wait for nothing)
        """Do what waits for its time (:meth:`later`)."""

    def now_us(self) -> int:
        """The catalog's clock in microseconds since 1970 (never the client's own)."""
        driven_us = self._clock.driven_us
        return self._database_us() if driven_us is None else driven_us()

    @abstractmethod
    def _database_us(self) -> int:
        """The time as the database tells it."""

    def notify(self, channel: str) -> None:
        """Wake whoever waits on ``channel``, in any process, once this has committed."""
        self.channels.add(channel)
