"""The read model: groups of every kind in one shape, from one snapshot of the catalog.

:func:`all_groups` reads a fixed number of statements, whatever the number of groups;
:func:`one_group` reads what one group is about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from operator import is_
from typing import NamedTuple, TypeVar, cast

import msgspec

from headrace.catalog import Tx, overview
from headrace.errors import HeadraceError
from headrace.groups import findings, hearing, kinds, lag, names
from headrace.groups.hearing import FOREVER_US
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
    view: GroupView
    at_us: int
    until_us: int
    """Up to this moment time alone changes only its ages."""
    silent: bool
    """Whether it tells for how long somebody was not heard."""
    rest: object
    """What the rest of the catalog was, but for progress (:attr:`Picture.rest`)."""
    reached: tuple[object, ...]
    """The progress of its readers."""

    def holds(self, picture: Picture) -> bool:
        """Whether it is only older, as far as can be told without its basis."""
        if picture.rest is not self.rest or not self.at_us <= picture.now_us <= self.until_us:
            return False
        return all(map(is_, map(picture.progress.get, self.basis.readers), self.reached))

    def aged(self, now_us: int, made_us: dict[str, int]) -> GroupView:
        """The view of now."""
        view = _aged(self.view, now_us - self.at_us)
        if self.view.lag.seconds:
            made_us[view.group] = self.at_us
        return hearing.aged(view, now_us) if self.silent else view


def views_again(picture: Picture, wanted: list[FullName]) -> tuple[list[GroupView], dict[str, int]]:
    """As :func:`views`; one that is made of the same as before is only aged.

    Its units are not, since hardly anybody looks at them: they are as they were at the moment that
    stands beside (by the group's name; without one they are as they are now).  ``lag.aged`` does it
    for whoever looks.
    """
    made_us: dict[str, int] = {}
    return _each(picture, wanted, partial(_again, made_us=made_us)), made_us


def _again(name: FullName, picture: Picture, made_us: dict[str, int]) -> GroupView:
    memory, now_us = picture.memory, picture.now_us
    known = cast(_Made | None, memory.last(("view", name)))
    if known is not None and known.holds(picture):
        return known.aged(now_us, made_us)
    kind = kinds.kind(name.family)
    try:
        basis = None if kind is None else kind.basis(name, picture)
    except HeadraceError:
        basis = None
    if basis is None:
        return _view(name, picture)
    reached = tuple([picture.progress.get(reader) for reader in basis.readers])
    if known is not None and known.at_us <= now_us <= known.until_us and known.basis == basis:
        known = known._replace(rest=picture.rest, reached=reached)
        memory.keep(("view", name), known)
        return known.aged(now_us, made_us)
    before = len(picture.wanted)
    made = _view(name, picture)
    until_us = min([hearing.same_until(each, now_us) for each in basis.leases], default=FOREVER_US)
    if until_us > now_us and len(picture.wanted) == before and _can_age(made):
        silent = hearing.tells_silence(made)
        this = _Made(basis, made, now_us, until_us, silent, picture.rest, reached)
        memory.keep(("view", name), this)
    return made


def _can_age(made: GroupView) -> bool:
    """Whether what is not acked has an age; of what was appended just now nobody can tell."""
    behind = made.lag
    if behind.source_events and not behind.source_seconds:
        return False
    return all(unit.seconds for unit in made.units if unit.events)


def _aged(view: GroupView, by_us: int) -> GroupView:
    """A view of which nothing has changed but that it is later, without its units."""
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
    return msgspec.structs.replace(view, lag=behind, findings=found)


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
