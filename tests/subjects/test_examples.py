from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from headrace import subjects
from headrace.subjects import filters


@pytest.mark.parametrize("module", [subjects, filters], ids=lambda module: module.__name__)
def test_examples_in_docstrings_are_true(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
