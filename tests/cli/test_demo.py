"""The end of the tour."""

from __future__ import annotations

import shlex

import pytest

from headrace.cli import app, arranged
from headrace.cli.demo import afterwards


@pytest.mark.parametrize("catalog", [None, "./demo", "it's here/demo"])
def test_it_ends_with_what_shows_the_same_flights_in_the_console(catalog: str | None) -> None:
    *_, last = afterwards(catalog).splitlines()
    said, _, commands = last.partition(": ")
    assert "console" in said
    for command in commands.split(" && "):
        first, *words = shlex.split(command)
        assert first == "headrace"
        app.parse_args(arranged(words), exit_on_error=False, print_error=False)
    assert words[-1] == "up"
    assert (catalog or "./demo") in words
