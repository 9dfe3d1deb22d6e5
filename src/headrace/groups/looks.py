"""Looking at groups of every kind by their names; each call reads one snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.catalog import Catalog, Tx
from headrace.groups import decisions, names, view
from headrace.groups.decisions import Decision
from headrace.groups.names import FullName
from headrace.groups.shapes import GroupExplanation, GroupLag, GroupMember, GroupView

DECISIONS = 20
"""As many of the latest decisions are shown where nobody says how many."""

T = TypeVar("T")


def of_all(catalog: Catalog) -> tuple[GroupView, ...]:
    """Every group, by name."""
    return tuple(catalog.read(view.all_groups, snapshot=True))


def lag_of_all(catalog: Catalog) -> tuple[GroupLag, ...]:
    """How far every group is behind, with its units."""
    return tuple(catalog.read(view.lag_of_all, snapshot=True))


def of_one(catalog: Catalog, name: str) -> GroupView:
    """One group."""
    return _named(catalog, name, view.one_group)


def lag_of_one(catalog: Catalog, name: str) -> GroupLag:
    """How far one group is behind, with its units."""
    return _named(catalog, name, view.group_lag)


def members_of_one(catalog: Catalog, name: str) -> tuple[GroupMember, ...]:
    """Who takes part in a group, and who should."""
    return _named(catalog, name, view.one_group).members


def decisions_of_one(catalog: Catalog, name: str, limit: int = DECISIONS) -> tuple[Decision, ...]:
    """The latest decisions about a group, oldest first."""
    decisions.check_limit(limit)
    return _named(catalog, name, lambda tx, found: _latest(tx, found, limit))


def explanation(catalog: Catalog, name: str, limit: int = DECISIONS) -> GroupExplanation:
    """What a group is doing and why."""
    decisions.check_limit(limit)

    def look(tx: Tx, found: FullName) -> GroupExplanation:
        return GroupExplanation(
            group=view.one_group(tx, found), decisions=_latest(tx, found, limit)
        )

    return _named(catalog, name, look)


def _latest(tx: Tx, name: FullName, limit: int) -> tuple[Decision, ...]:
    return tuple(decisions.read(tx, str(name), limit))


def _named(catalog: Catalog, name: str, look: Callable[[Tx, FullName], T]) -> T:
    return catalog.read(lambda tx: look(tx, names.resolve(tx, name)), snapshot=True)
