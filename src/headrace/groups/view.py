"""The read model: groups of every kind in one shape, from one snapshot of the catalog.

:func:`all_groups` reads a fixed number of statements, whatever the number of groups;
:func:`one_group` reads what one group is about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import msgspec

from headrace.catalog import Tx, overview
from headrace.errors import HeadraceError
from headrace.groups import findings, hearing, kinds, lag, names
from headrace.groups.kinds import Basis
from headrace.groups.names import FullName
from headrace.groups.picture import Memories, Picture, take
from headrace.groups.shapes import Finding, GroupLag, GroupView

_log = logging.getLogger(__name__)

T = TypeVar("T")


def all_groups(tx: Tx) -> list[GroupView]:
    """Every group, by name."""
    wanted = names.all_names(tx)
    return list(views(picture_of_all(tx, wanted), wanted))


def picture_of_all(tx: Tx, wanted: list[FullName], memories: Memories | None = None) -> Picture:
    """Everything that the catalog knows of groups; ``wanted`` are all their names."""
    if memories is not None:
        memories.begin(tx.now_us())
    known = list(kinds.kinds({name.family for name in wanted}))
    buckets = [bucket for each in known for bucket in (*each.buckets, *each.whole(None))]
    own = {each.family: each.load(tx, None) for each in known}
    return take(tx, overview.entries(tx, list(dict.fromkeys(buckets))), own, memories=memories)


def lag_of_all(tx: Tx) -> list[GroupLag]:
    """How far every group is behind, with its units, by name."""
    wanted = names.all_names(tx)
    return _each(picture_of_all(tx, wanted), wanted, _lag)


def views(picture: Picture, wanted: list[FullName]) -> list[GroupView]:
    """Groups in a picture; what cannot be read stands there as a finding."""
    return _each(picture, wanted, _view)


class _Made(NamedTuple):
    """A view that was made before."""

    basis: Basis
    phases: tuple[str, ...]
    view: GroupView
    at_us: int


def views_again(picture: Picture, wanted: list[FullName]) -> list[GroupView]:
    """As :func:`views`; one that is made of the same as before is only aged."""
    return _each(picture, wanted, _again)


def _again(name: FullName, picture: Picture) -> GroupView:
    kind = kinds.kind(name.family)
    try:
        basis = None if kind is None else kind.basis(name, picture)
    except HeadraceError:
        basis = None
    if basis is None:
        return _view(name, picture)
    now_us = picture.now_us
    known = cast(_Made | None, picture.memory.last(("view", name)))
    phases = _phases(basis, now_us)
    if known is not None and known.basis == basis and known.phases == phases:
        return hearing.aged(_aged(known.view, now_us - known.at_us), now_us)
    before = len(picture.wanted)
    made = _view(name, picture)
    if phases is not None and len(picture.wanted) == before and _can_age(made):
        picture.memory.keep(("view", name), _Made(basis, phases, made, now_us))
    return made


def _can_age(made: GroupView) -> bool:
    """Whether what is not acked has an age; of what was appended just now nobody can tell."""
    behind = made.lag
    if behind.source_events and not behind.source_seconds:
        return False
    return all(unit.seconds for unit in made.units if unit.events)


def _phases(basis: Basis, now_us: int) -> tuple[str, ...] | None:
    """How it is with those who hold the leases; None where time alone changes what is said."""
    found = [hearing.phase(lease, now_us) for lease in basis.leases]
    phases = tuple([each for each in found if each is not None])
    return phases if len(phases) == len(found) else None


def _aged(view: GroupView, by_us: int) -> GroupView:
    """A view of which nothing has changed but that it is later."""
    before = view.lag
    if not before.seconds:
        return view
    behind = msgspec.structs.replace(
        before,
        seconds=lag.later_s(before.seconds, by_us),
        source_seconds=lag.later_s(before.source_seconds, by_us),
    )
    found = view.findings
    if behind.seconds > findings.BEHIND_S:
        rest = [each for each in found if each.finding not in findings.OF_LAG]
        found = (*rest, *findings.of_lag(behind))
    units = lag.aged(view.units, by_us)
    return msgspec.structs.replace(view, lag=behind, units=units, findings=found)


def _each(
    picture: Picture, wanted: list[FullName], look: Callable[[FullName, Picture], T]
) -> list[T]:
    found = {}
    again = []
    for name in wanted:
        before = len(picture.wanted)
        found[name] = look(name, picture)
        if len(picture.wanted) > before:
            again.append(name)
        elif picture.wanted and name.family == names.PARTITIONED:
            again.append(name)  # the same first batch may be wanted by several
    if picture.wanted:
        picture.begin_again()
        for name in again:
            found[name] = look(name, picture)
    return list(found.values())


def one_group(tx: Tx, name: FullName) -> GroupView:
    """One group; a record of it that cannot be read raises."""
    kind = kinds.kind(name.family)
    assert kind is not None, name
    read = {
        **overview.entries(tx, kind.buckets, kind.keys(name)),
        **(overview.entries(tx, whole) if (whole := kind.whole(name)) else {}),
    }
    own: dict[str, object] = {name.family: kind.load(tx, name)}
    picture = take(tx, read, own, kind.reach(name, read, own[name.family]))
    found = kind.view(name, picture)
    if picture.wanted:
        picture.begin_again()
        found = kind.view(name, picture)
    return found


def group_lag(tx: Tx, name: FullName) -> GroupLag:
    """How far one group is behind, with its units."""
    found = one_group(tx, name)
    return msgspec.structs.replace(found.lag, units=found.units)


def _lag(name: FullName, picture: Picture) -> GroupLag:
    kind = kinds.kind(name.family)
    try:
        if kind is not None:
            return kind.lag(name, picture)
    except HeadraceError as error:
        _log.debug("group %s: %s", name, error)
    return lag.total(str(name), name.family, [])


def _view(name: FullName, picture: Picture) -> GroupView:
    kind = kinds.kind(name.family)
    try:
        if kind is not None:
            return kind.view(name, picture)
    except HeadraceError as error:
        _log.debug("group %s: %s", name, error)
        sentence = f"it cannot be read: {error}"
        finding = Finding(finding="unreadable", about=str(name), sentence=sentence)
        return GroupView(
            group=str(name),
            kind=name.family,
            lag=lag.total(str(name), name.family, []),
            findings=(finding,),
        )
    return GroupView(group=str(name), kind=name.family, lag=lag.total(str(name), name.family, []))
