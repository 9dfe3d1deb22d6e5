"""The name of a group in the record, from the one under which its claims and progress are kept."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.groups.names import PARTITIONED, SHARED, FullName

PRIVATE = "~"
"""Begins the key of a session's private subscription."""


def record_key(key: str) -> str:
    """The text by which everybody names a group.

    >>> record_key("orders.billing"), record_key("orders.billing.member.m1")
    ('orders/billing', 'orders/billing')
    >>> record_key("audit:orders.>"), record_key("~worker:orders.>")
    ('$share/audit/orders.>', 'session/worker/orders.>')
    """
    try:
        if ":" in key:
            group, _, filter = key.partition(":")
            if group.startswith(PRIVATE):
                return f"session/{group.removeprefix(PRIVATE)}/{filter}"
            return str(FullName(SHARED, filter, group))
        if "." in key:
            stream, group = key.split(".")[:2]
            return str(FullName(PARTITIONED, stream, group))
    except HeadraceError:
        pass
    return key


def is_share(key: str) -> bool:
    """Whether it is a member's own place in a static group that reads a stream's segments."""
    return key.count(".") > 1 and ":" not in key
