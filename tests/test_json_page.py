"""The page of JSON shapes is what the types are, and the types keep to one vocabulary."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tests import json_page


def test_the_page_is_made_from_the_types() -> None:
    assert json_page.PAGE.read_text() == json_page.page(), "run: python -m tests.json_page"


def test_the_types_keep_to_one_vocabulary() -> None:
    for module in json_page.MODULES:
        for kind in json_page.kinds(module):
            for field in msgspec.structs.fields(kind):
                name = field.encode_name
                is_time = field.type is datetime or datetime in getattr(field.type, "__args__", ())
                assert name.endswith("_at") == is_time, (kind, name)
                assert not name.endswith("_us"), (kind, name)
                assert name not in ("time", "node", "parts"), (kind, name)
                assert name != "events" or field.type is not int, (kind, name)


def test_what_the_page_lacks_is_seen() -> None:
    """The comparison can fail."""
    assert "lag_events" in json_page.page()
    assert "lag_events" not in json_page.page().replace("lag_events", "events")
