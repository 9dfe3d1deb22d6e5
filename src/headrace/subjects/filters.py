"""Filters over subjects: matching one subject, overlap, and MQTT's spelling.

Theory of operation.  ``*`` stands for exactly one token and ``>``, as the last token, for one
or more.  Filters and subjects are taken as well-formed (``check_filter``, ``check_subject``);
nothing here checks them again.  Columns are matched in ``matching``, which loads Arrow.

People write filters in two spellings, ours and MQTT's.  :func:`parse_filter` takes both:

* a text with a ``.`` is ours; so is one with neither ``/`` nor an MQTT wildcard;
* a text without ``.`` that has a ``/``, or is ``+`` or ``#``, is MQTT's, and is translated;
* a text that mixes them (``orders.+``, ``a.b/#``, ``a/*/b``) is refused, because one half of
  it would silently be taken as literal characters.

MQTT's ``#`` also matches the parent level; ``>`` does not: ``a/#`` becomes ``a.>``, which
matches ``a.b`` and not ``a``.
"""

from __future__ import annotations

import re

from headrace.errors import InvalidFilterError
from headrace.subjects.rules import check_filter, check_name, shown

_SHARE_PREFIXES = ("$share/", "$shared/", "$queue/")


def matches(filter: str, subject: str) -> bool:
    """Whether a subject passes a filter.

    >>> matches("orders.*.new", "orders.eu.new"), matches("orders.>", "orders")
    (True, False)
    """
    wanted = filter.split(".")
    tokens = subject.split(".")
    if wanted[-1] == ">":
        del wanted[-1]
        if len(tokens) <= len(wanted):
            return False
    elif len(tokens) != len(wanted):
        return False
    return all(want in ("*", token) for want, token in zip(wanted, tokens, strict=False))


def overlaps(a: str, b: str) -> bool:
    """Whether some subject passes both filters (limits on a subject's length aside).

    >>> overlaps("orders.*", "*.eu"), overlaps("orders.>", "orders")
    (True, False)
    """
    left = a.split(".")
    right = b.split(".")
    for one, other in zip(left, right, strict=False):
        if one == ">" or other == ">":
            return True
        if one != other and one != "*" and other != "*":
            return False
    return len(left) == len(right)


def covers(a: str, b: str) -> bool:
    """Whether every subject that passes filter ``b`` passes ``a`` as well.

    >>> covers("orders.>", "orders.*.new"), covers("orders.*", "orders.>")
    (True, False)
    """
    left = a.split(".")
    right = b.split(".")
    for one, other in zip(left, right, strict=False):
        if one == ">":
            return True
        if other == ">" or (one != other and one != "*"):
            return False
    return len(left) == len(right)


def from_mqtt(filter: str) -> str:
    """Translate an MQTT filter: ``/``, ``+`` and ``#`` become ``.``, ``*`` and ``>``.

    >>> from_mqtt("orders/+/#")
    'orders.*.>'
    """
    if not isinstance(filter, str):
        raise InvalidFilterError(f"invalid filter {shown(filter)}: it must be a string")
    levels = filter.split("/")
    for number, level in enumerate(levels, 1):
        fault = _level_fault(level, last=number == len(levels))
        if fault is not None:
            raise InvalidFilterError(f"invalid MQTT filter {shown(filter)}: level {number} {fault}")
    spelled = {"+": "*", "#": ">"}
    return check_filter(".".join(spelled.get(level, level) for level in levels))


def _level_fault(level: str, *, last: bool) -> str | None:
    if not level:
        return "is empty"
    if "." in level:
        return "has a '.', which separates tokens here"
    if level in {"*", ">"}:
        return f"is {level!r}; MQTT writes '+' and '#'"
    if level == "#":
        return None if last else "is '#', which may only be the last"
    if level != "+" and ("+" in level or "#" in level):
        return "has '+' or '#' beside other characters"
    return None


def parse_filter(text: str) -> str:
    """Take a filter in our spelling or in MQTT's and return it in ours, checked.

    >>> parse_filter("orders.*.>"), parse_filter("orders/+/#")
    ('orders.*.>', 'orders.*.>')
    """
    if not isinstance(text, str):
        return check_filter(text)
    pieces = re.split(r"[./]", text)
    mqtt_wildcard = "+" in pieces or "#" in pieces
    if "." in text:
        if mqtt_wildcard:
            raise InvalidFilterError(
                f"invalid filter {shown(text)}: it mixes '.' with MQTT's '+' or '#'; "
                "write '*' for one token and '>' for the rest"
            )
        return check_filter(text)
    return from_mqtt(text) if "/" in text or mqtt_wildcard else check_filter(text)


def parse_share(text: str) -> tuple[str, str] | None:
    """Group and filter of a shared subscription, or None when the text is not one.

    >>> parse_share("$share/audit/orders.>"), parse_share("orders.>")
    (('audit', 'orders.>'), None)
    """
    for prefix in _SHARE_PREFIXES:
        if isinstance(text, str) and text.startswith(prefix):
            group, slash, filter = text.removeprefix(prefix).partition("/")
            check_name(group, "group name")
            if not slash or not filter:
                raise InvalidFilterError(
                    f"invalid shared subscription {shown(text)}: "
                    f"write {prefix}GROUP/FILTER, here the filter is missing"
                )
            return group, parse_filter(filter)
    return None
