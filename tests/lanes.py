"""How `make test` shares the tests among its processes (pytest-xdist).

A file's tests stay together, since they share fixtures. All files that use the one Spark session
stay together as well: starting a second one takes longer than most of their tests. So do those of
the browser, which count together how much of the console they have run, and those that make
networks, since a browser then gives up what it is loading. What takes longest begins first, so that
no process is left with a long file when the others are through.
"""

from __future__ import annotations

from functools import cache

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support import ROOT

BROWSER = "tests/node/browser/"
NETWORKS = ("tests/groups/shared/runtime/test_machines.py",)
FIRST = (
    *("tests/spark/", "tests/epochs/test_simulation", "tests/sim/", "tests/torture/"),
    *(BROWSER, "tests/cli/test_sim", "tests/api/test_forks", "tests/groups/shared/"),
)


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out whole files, and those that share the Spark session, or the browser, as one."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith(BROWSER) or path in NETWORKS:
            return BROWSER
        return "tests/spark" if _shares_spark(path) else path


@cache
def _shares_spark(path: str) -> bool:
    return path.startswith("tests/spark/") and "spark: SparkSession" in (ROOT / path).read_text()


def begin_with_the_longest(items: list[pytest.Item]) -> None:
    """Put the folders whose tests take longest first; else the order stays as it was."""
    items.sort(
        key=lambda item: next((n for n, f in enumerate(FIRST) if f in item.nodeid), len(FIRST))
    )
