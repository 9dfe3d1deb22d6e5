"""The figures of growth are measured, here at a size at which they say nothing."""

from __future__ import annotations

import asyncio

import pytest

from bench.unbreakable import FIGURES

GROWTH = ("follows", "streams", "sessions", "anonymous", "compaction")


@pytest.mark.parametrize("name", [*GROWTH, "forks", "handlers"])
def test_a_figure_is_measured(name: str) -> None:
    results = asyncio.run(FIGURES[name](0.003))
    assert results
    for result in results:
        assert result.value >= 0
        assert result.target
