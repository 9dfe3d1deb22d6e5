"""Nodes for tests: one for each, on SQLite and on PostgreSQL where both matter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.support import RunningNode, running


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A node on a fresh SQLite catalog."""
    with running(str(tmp_path / "catalog")) as found:
        yield found


@pytest.fixture
def any_node(catalog_url: str) -> Iterator[RunningNode]:
    """A node on each kind of catalog."""
    with running(catalog_url) as found:
        yield found


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for tests that do not disturb each other."""
    with running(str(tmp_path_factory.mktemp("node") / "catalog")) as found:
        yield found
