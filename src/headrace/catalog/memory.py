"""What somebody who looks again and again has read before, so that it is made only once.

Rows are read anew with every look; that is cheap.  What is made of them (records, graphs, counts)
is used again where the rows are the same.  And what is the same stays the same *object*: whoever
has made more of it compares with ``is``, and need not look into it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar, cast

T = TypeVar("T")
B = TypeVar("B")
K = TypeVar("K")


class Memory:
    """What one looker remembers; for one thread at a time."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[object, object]] = {}

    def made(self, what: Hashable, basis: B, make: Callable[[B], T]) -> T:
        """What is made of a basis; that of the last time if it was made of the same.

        >>> memory = Memory()
        >>> memory.made("sum", [1, 2], sum), memory.made("sum", [1, 2], lambda _: 0)
        (3, 3)
        """
        known = self._known(what, basis)
        if known is not None and known[0] is basis:
            return cast(T, known[1])
        made = make(basis)
        self._made[what] = basis, made
        return made

    def each(self, what: Hashable, basis: B, make: Callable[[B], Mapping[K, T]]) -> Mapping[K, T]:
        """A mapping that is made of a basis; values that are equal to the last ones stay those."""
        known = self._known(what, basis)
        if known is not None and known[0] is basis:
            return cast(Mapping[K, T], known[1])
        made = make(basis)
        if known is not None:
            before = cast(Mapping[K, T], known[1])
            made = {key: _kept(before.get(key), value) for key, value in made.items()}
        self._made[what] = basis, made
        return made

    def last(self, what: Hashable) -> object:
        """What was kept; None if nothing was."""
        known = self._made.get(what)
        return None if known is None else known[1]

    def keep(self, what: Hashable, made: object) -> None:
        """Keep something for the next time."""
        self._made[what] = None, made

    def _known(self, what: Hashable, basis: object) -> tuple[object, object] | None:
        """What was last made, and of what: of the basis itself if that is the same."""
        known = self._made.get(what)
        if known is not None and known[0] is not basis and known[0] == basis:
            # Whoever asks again with this very object is answered at once.
            known = self._made[what] = basis, known[1]
        return known

    def forget(self) -> None:
        """Make everything anew the next time."""
        self._made.clear()


def _kept(before: T | None, value: T) -> T:
    return before if before is not None and before == value else value
