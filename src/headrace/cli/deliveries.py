"""A delivery at the terminal: a line for people, or JSON for programs."""

from __future__ import annotations

import msgspec

from headrace.cli import records
from headrace.cli.read import printable
from headrace.cli.screens import time_text
from headrace.groups.consumer import Delivery


def shown(delivery: Delivery, as_json: bool) -> str:
    """One line."""
    if not as_json:
        text = printable(delivery.value.decode(errors="backslashreplace"))
        place = f"{delivery.stream}/{delivery.segment}:{delivery.offset}"
        when = time_text(delivery.timestamp_us // 1000 * 1000)
        return f"{when}  {printable(delivery.subject)}  {place}  {text}"
    row = {
        "segment": delivery.segment,
        "offset": delivery.offset,
        "timestamp": delivery.timestamp_us,
        "subject": delivery.subject,
        "key": delivery.key,
        "value": delivery.value,
        "headers": [
            {"key": key, "value": value if isinstance(value, bytes) else value.encode()}
            for key, value in delivery.headers
        ],
        "epoch": None,
        "origin": None,
    }
    found = {"stream": delivery.stream, **records.shown(row), "attempt": delivery.attempt}
    return msgspec.json.encode(found).decode()
