"""One way to name a group, whatever its kind.

=========================== ======================== =======================================
family                      a name of it             also taken
=========================== ======================== =======================================
partitioned                 ``orders/billing``       ``partitioned/orders/billing``
shared                      ``$share/audit/orders.>`` ``$share/audit/orders/#``, ``$shared/…``,
                                                     ``$queue/…``, ``audit:orders.>``
reader                      ``reader/report``
=========================== ======================== =======================================

A plain name (``billing``) is enough where only one group has it.  The words before the first ``/``
that are families stand for themselves: a partitioned group of a stream called ``reader`` is
``partitioned/reader/report``, so that no two groups ever have the same name.

A family is a :class:`NameForm`, added with :func:`register` by the module that stores such groups
(or in ``_FORMS`` below, which loads that module when names are listed).  Everything that takes a
name calls :func:`resolve`, and gets a :class:`FullName` or an error that tells which there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module

import msgspec

from headrace.catalog import Tx, entries
from headrace.catalog.keys import named
from headrace.catalog.records import left_out
from headrace.errors import (
    AmbiguousGroupNameError,
    InvalidNameError,
    UnknownGroupNameError,
)
from headrace.groups.partitioned.names import ELASTIC_BUCKET, STATIC_BUCKET, GroupName
from headrace.groups.shared.core.naming import group_key
from headrace.subjects import check_filter, check_name, parse_share

PARTITIONED = "partitioned"
SHARED = "shared"
SHARED_BUCKET = "shared-groups"
NAME_CHARS_MAX = 1_000
NAMES_KNOWN = 10_000
"""Names are taken apart once; whoever lists them lists them again and again."""
LISTED_MAX = 20
"""An error lists this many names."""


class FullName(msgspec.Struct, frozen=True, order=True):
    """A group's name, taken apart.

    >>> parse("$share/audit/orders/#")
    FullName(family='shared', scope='orders.>', group='audit')
    >>> str(parse("orders/billing")), parse("orders/billing").key
    ('orders/billing', 'orders.billing')
    """

    family: str
    scope: str
    """The stream of a partitioned group, the filter of a shared one; empty where there is none."""
    group: str

    def __str__(self) -> str:
        return _form(self.family).text(self)

    @property
    def key(self) -> str:
        """The name under which the catalog keeps it: of its entry, its claims and its progress."""
        return _key(self)

    @property
    def partitioned(self) -> GroupName:
        """What is derived from the name of a partitioned group."""
        assert self.family == PARTITIONED, self
        return GroupName(self.scope, self.group)


class NameForm(msgspec.Struct, frozen=True, kw_only=True):
    """How the names of one family are written, and which there are."""

    family: str
    """Also the word before the first ``/`` of its long names."""
    takes: str
    """How a person is told to write one: ``reader/GROUP``."""
    read: Callable[[str], FullName]
    """The name of what follows ``FAMILY/``; raises what is wrong with it."""
    text: Callable[[FullName], str]
    key: Callable[[FullName], str]
    listed: Callable[[Tx], Iterable[FullName]]
    """The groups that the catalog has, with as few statements as possible."""
    has: Callable[[Tx, FullName], bool] | None = None
    """Whether the catalog has one, without a look at the others."""


_forms: dict[str, NameForm] = {}
_later: dict[str, str] = {}
"""Families whose module is loaded when it is first needed: {family: module}."""


def register(form: NameForm) -> None:
    """Add a family of names; the module that keeps such groups calls it when it is loaded."""
    _forms[form.family] = form


def register_later(family: str, module: str) -> None:
    """Add a family whose module registers it when it is loaded: not before a name needs it."""
    _later[family] = module


def _form(family: str) -> NameForm:
    if family not in _forms:
        import_module(_later[family])
    return _forms[family]


@lru_cache(maxsize=NAMES_KNOWN)
def _key(name: FullName) -> str:
    return _form(name.family).key(name)


def families() -> tuple[str, ...]:
    """Every family, in the order in which they were added."""
    return tuple(dict.fromkeys((*_forms, *_later)))


# --- from text to names -----------------------------------------------------------------------


def parse(text: str) -> FullName | None:
    """A name in full; None if it is a plain one, which only a catalog can tell (:func:`resolve`).

    >>> parse("billing") is None
    True
    """
    if len(text) > NAME_CHARS_MAX:
        raise InvalidNameError(
            f"a group's name has {len(text)} characters; at most {NAME_CHARS_MAX} fit"
        )
    if text.startswith("$"):
        shared = parse_share(text)
        if shared is None:
            raise InvalidNameError(
                f"{text!r} is not the name of a group; write {_form(SHARED).takes}"
            )
        return FullName(SHARED, shared[1], shared[0])
    first, slash, rest = text.partition("/")
    if slash and first in families():
        return _form(first).read(rest)
    if slash:
        return _read_partitioned(text)
    if ":" in text:
        return _of_shared_key(text)
    check_name(text, "group name")
    return None


def of_key(key: str) -> FullName:
    """The name of a group by the key under which the catalog keeps it.

    >>> str(of_key("orders.billing")), str(of_key("audit:orders.>")), str(of_key("reader/report"))
    ('orders/billing', '$share/audit/orders.>', 'reader/report')
    """
    if ":" in key:
        return _of_shared_key(key)
    family, slash, rest = key.partition("/")
    return _form(family).read(rest) if slash else _of_partitioned_key(key)


def resolve(tx: Tx, text: str) -> FullName:
    """The group that a person means; unknown and ambiguous names raise with those there are."""
    wanted = parse(text)
    if wanted is not None:
        has = _form(wanted.family).has
        if has is not None and has(tx, wanted):
            return wanted
    known = all_names(tx)
    if wanted is not None:
        if wanted not in known:
            raise UnknownGroupNameError(text, _shown(_nearest(wanted, known)))
        return wanted
    fitting = [name for name in known if name.group == text]
    if not fitting:
        raise UnknownGroupNameError(text, _shown(known))
    if len(fitting) > 1:
        raise AmbiguousGroupNameError(text, _shown(fitting))
    return fitting[0]


def all_names(tx: Tx) -> list[FullName]:
    """Every group of every kind that the catalog has, sorted."""
    every = [name for family in families() for name in _form(family).listed(tx)]
    return sorted(every)


def _nearest(wanted: FullName, known: list[FullName]) -> list[FullName]:
    """Those of the same stream or of the same plain name first: it is probably one of them."""
    return sorted(known, key=lambda name: (name.group != wanted.group, name.scope != wanted.scope))


def _shown(found: list[FullName]) -> tuple[str, ...]:
    more = len(found) - LISTED_MAX
    names = tuple(str(name) for name in found[:LISTED_MAX])
    return (*names, f"and {more:,} more") if more > 0 else names


# --- the families that are always there -------------------------------------------------------


def _read_partitioned(text: str) -> FullName:
    stream, slash, group = text.partition("/")
    if not slash or "/" in group:
        raise InvalidNameError(
            f"{text!r} is not the name of a group; write STREAM/GROUP, $share/GROUP/FILTER, "
            "reader/GROUP, or the group's plain name"
        )
    return FullName(PARTITIONED, check_name(stream, "stream name"), check_name(group, "group name"))


def _partitioned_text(name: FullName) -> str:
    short = f"{name.scope}/{name.group}"
    return f"{PARTITIONED}/{short}" if name.scope in _forms or name.scope in _later else short


@lru_cache(maxsize=NAMES_KNOWN)
def _of_partitioned_key(key: str) -> FullName:
    found = GroupName.of_key(key)
    return FullName(PARTITIONED, found.stream, found.group)


@lru_cache(maxsize=NAMES_KNOWN)
def _of_shared_key(key: str) -> FullName:
    group, _, filter = key.partition(":")
    return FullName(SHARED, check_filter(filter), check_name(group, "group name"))


def _in_buckets(
    buckets: tuple[str, ...], of_key: Callable[[str], FullName]
) -> Callable[[Tx], list[FullName]]:
    @lru_cache(maxsize=NAMES_KNOWN)
    def read(bucket: str, key: str) -> FullName:
        return named(bucket, key, of_key)

    def listed(tx: Tx) -> list[FullName]:
        found = []
        for bucket in buckets:
            for key in entries.keys(tx, bucket, ""):
                with left_out():
                    found.append(read(bucket, key))
        return found

    return listed


def _has_entry(buckets: tuple[str, ...]) -> Callable[[Tx, FullName], bool]:
    def has(tx: Tx, name: FullName) -> bool:
        return any(entries.get(tx, bucket, name.key) is not None for bucket in buckets)

    return has


register(
    NameForm(
        family=PARTITIONED,
        takes="STREAM/GROUP",
        read=_read_partitioned,
        text=_partitioned_text,
        key=lambda name: name.partitioned.key,
        listed=_in_buckets((STATIC_BUCKET, ELASTIC_BUCKET), _of_partitioned_key),
        has=_has_entry((STATIC_BUCKET, ELASTIC_BUCKET)),
    )
)
register(
    NameForm(
        family=SHARED,
        takes="$share/GROUP/FILTER",
        read=lambda rest: _read_shared(rest),
        text=lambda name: f"$share/{name.group}/{name.scope}",
        key=lambda name: group_key(name.group, name.scope),
        listed=_in_buckets((SHARED_BUCKET,), _of_shared_key),
        has=_has_entry((SHARED_BUCKET,)),
    )
)


def _read_shared(rest: str) -> FullName:
    parsed = parse_share(f"$share/{rest}")
    assert parsed is not None
    return FullName(SHARED, parsed[1], parsed[0])


register_later("reader", "headrace.groups.readers.names")
