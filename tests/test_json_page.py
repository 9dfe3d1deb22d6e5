"""The page of JSON shapes is what the types are, and the types keep to one vocabulary."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import datetime

import msgspec
from cyclopts import App

from headrace.cli import app
from headrace.cli.options import Options
from headrace.cli.records import EventShape
from tests import json_page


def test_the_page_is_made_from_the_types() -> None:
    assert json_page.PAGE.read_text() == json_page.page(), "run: python -m tests.json_page"


def test_the_types_keep_to_one_vocabulary() -> None:
    of_events = set(EventShape.__struct_fields__)
    for kind in json_page.kinds():
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            if issubclass(kind, EventShape) and name in of_events:
                continue  # the columns of an event
            is_time = field.type is datetime or datetime in getattr(field.type, "__args__", ())
            assert name.endswith("_at") == is_time, (kind, name)
            assert not name.endswith("_us"), (kind, name)
            assert name not in ("time", "node", "owner", "parts", "removed"), (kind, name)
            assert name not in ("events", "rows") or field.type is not int, (kind, name)


def test_every_command_that_prints_json_is_on_the_page() -> None:
    commands = {name for name, takes_json in _commands(app, "") if takes_json}
    assert commands - json_page.OF_NO_SHAPE == set(json_page.PRINTS)


def _commands(parent: App, above: str) -> Iterator[tuple[str, bool]]:
    """Every command, and whether it takes --json."""
    if above and parent.default_command is not None:
        hints = inspect.get_annotations(parent.default_command, eval_str=True).values()
        yield above, Options in hints
    for name in parent:
        if not name.startswith("-"):
            yield from _commands(parent[name], f"{above} {name}".strip())


def test_what_the_page_lacks_is_seen() -> None:
    """The comparison can fail."""
    assert "lag_events" in json_page.page()
    assert "lag_events" not in json_page.page().replace("lag_events", "events")
