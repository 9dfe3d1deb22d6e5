"""How `make test` shares the tests among its processes (pytest-xdist).

A file's tests stay together, since they share fixtures. All that use the one Spark session stay
together as well: starting a second one takes longer than most of them. What takes longest begins
first, so that no process is left with a long file when the others are through.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

FIRST = ("tests/spark/", "tests/sim/", "tests/torture/", "tests/groups/shared/")


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out whole files, and the tests of Spark as one."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/spark" if nodeid.startswith("tests/spark/") else nodeid.partition("::")[0]


def begin_with_the_longest(items: list[pytest.Item]) -> None:
    """Put the folders whose tests take longest first; else the order stays as it was."""
    items.sort(
        key=lambda item: next((n for n, f in enumerate(FIRST) if f in item.nodeid), len(FIRST))
    )
