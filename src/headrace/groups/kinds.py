"""The kinds of groups, as far as those who look at groups need to know them.

A kind is registered under the family of its names, with the module that holds its
:class:`KindOfGroups` as ``KIND``; that module is loaded when such a group is looked at.  It reads
what it needs from a picture of the catalog, and from tables of its own by :meth:`KindOfGroups.load`
with a fixed number of statements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import ClassVar, NamedTuple

import msgspec

from headrace.catalog import Tx
from headrace.catalog.leases import Ended
from headrace.groups.names import PARTITIONED, SHARED, FullName
from headrace.groups.picture import CatalogReach, Picture
from headrace.groups.shapes import GroupLag, GroupView


class Basis(NamedTuple):
    """All that a view of a group is made of, but the time.

    Nothing of it is from elsewhere than a picture's entries, streams, claims, leases, progress and
    ``own``.
    """

    parts: tuple[object, ...]
    readers: tuple[str, ...]
    """Those whose progress is among the parts."""
    leases: tuple[Ended | None, ...]
    """While nothing changes about them, a view changes with time only in its lag, and in how long
    who is silent was not heard."""


class KindOfGroups(ABC):
    """How groups of one family are found in a picture of the catalog."""

    family: ClassVar[str]
    buckets: ClassVar[tuple[str, ...]] = ()
    """Entries by the keys of :meth:`keys`."""

    def keys(self, name: FullName) -> Sequence[str]:
        """The keys in ``buckets`` of one group."""
        return [name.key]

    def whole(self, name: FullName | None) -> Sequence[str]:  # noqa: ARG002
        """Buckets that are read whole; one that ends in ``:`` is all that begin like that."""
        return ()

    def load(self, tx: Tx, name: FullName | None) -> object:  # noqa: ARG002
        """What is read of tables of its own; it is found in ``picture.own[family]``."""
        return None

    @abstractmethod
    def reach(
        self, name: FullName, entries: Mapping[str, Mapping[str, bytes]], own: object
    ) -> CatalogReach:
        """What of the catalog one group is about."""

    @abstractmethod
    def view(self, name: FullName, picture: Picture) -> GroupView:
        """The group as the picture shows it; a record that cannot be read raises."""

    def basis(self, name: FullName, picture: Picture) -> Basis | None:  # noqa: ARG002
        """What the view is made of, to be compared with what an earlier one was made of.

        None: nobody can tell, and it is made anew each time.
        """
        return None

    def lag(self, name: FullName, picture: Picture) -> GroupLag:
        """The lag of the view, with the units."""
        found = self.view(name, picture)
        return msgspec.structs.replace(found.lag, units=found.units)


_homes: dict[str, str] = {
    PARTITIONED: "headrace.groups.partitioned.view",
    SHARED: "headrace.groups.shared.view",
    "reader": "headrace.groups.readers.view",
}


_loaded: dict[str, KindOfGroups] = {}


def register_later(family: str, module: str) -> None:
    """Groups of this family are looked at by the ``KIND`` of that module."""
    _homes[family] = module


def kind(family: str) -> KindOfGroups | None:
    """How to look at groups of a family; None if nobody can (it is only named yet)."""
    home = _homes.get(family)
    if home is not None and home not in _loaded:
        _loaded[home] = import_module(home).KIND
    return None if home is None else _loaded[home]


def kinds(families: Collection[str]) -> Iterable[KindOfGroups]:
    """The kinds of these families that can be looked at, and those that are always there."""
    wanted = [family for family in _homes if family in families or family in (PARTITIONED, SHARED)]
    return [found for family in wanted if (found := kind(family)) is not None]
