"""The examples in the docstrings work."""

from __future__ import annotations

import doctest

import pytest

from headrace.epochs.core import antichains, publisher, subscriber, times


@pytest.mark.parametrize("module", [antichains, publisher, subscriber, times])
def test_examples_in_docstrings(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
