"""How shared groups are named."""

from __future__ import annotations

from headrace.errors import InvalidFilterError
from headrace.subjects import parse_share


def group_key(group: str, filter: str) -> str:
    """What a leader leads: the subscribers of one group with one filter."""
    return f"{group}:{filter}"


def parse_subscription(text: str) -> tuple[str, str]:
    """Group and filter of a shared subscription, or an error that says how to write one."""
    parsed = parse_share(text)
    if parsed is None:
        raise InvalidFilterError(
            f"{text!r} is not a shared subscription; write $share/GROUP/FILTER or $queue/FILTER"
        )
    return parsed
