"""How `make test` shares the tests among its processes (pytest-xdist).

A file's tests stay together, since they share fixtures. The files that use a Spark session are two
lanes, which write and which read: one alone would be the last to end, and starting a third session
takes longer than most of their tests. What takes longest begins first, so that no process is left
with a long file when the others are through.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support import ROOT

WRITES = ("test_sink", "test_session", "test_stateful", "test_supervisor")
"""Files of the lane that writes begin with one of these."""
FIRST = (
    *("tests/spark/test_sink", "tests/spark/epochs/", "tests/spark/test_demo"),
    *("tests/spark/", "tests/epochs/test_simulation", "tests/sim/", "tests/torture/"),
    *("tests/node/browser/", "tests/cli/test_sim", "tests/api/test_forks", "tests/groups/shared/"),
)


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out whole files, and those that share a Spark session together."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if not _shares_spark(path):
            return path
        return f"spark that {'writes' if Path(path).name.startswith(WRITES) else 'reads'}"


@cache
def _shares_spark(path: str) -> bool:
    return path.startswith("tests/spark/") and "spark: SparkSession" in (ROOT / path).read_text()


def begin_with_the_longest(items: list[pytest.Item]) -> None:
    """Put the folders whose tests take longest first; else the order stays as it was."""
    items.sort(
        key=lambda item: next((n for n, f in enumerate(FIRST) if f in item.nodeid), len(FIRST))
    )
