"""Claims: which member owns a unit of a group, under which fencing token.

A unit has one owner at most.  Every claim raises the token, so the former owner's is stale from
that commit on, and every operation that checks it is refused with
:class:`~headrace.errors.Fenced`.

Claims of units that are gone for good are deleted, and no token comes again all the same: what
replaces them is one number, below which no claim begins (:func:`floor`).  A group has one for its
units, and the catalog one for all groups that were deleted.  It stands in a row without a unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog.keys import check_key
from headrace.catalog.transaction import Query, Tx, in_parts
from headrace.errors import Fenced

if TYPE_CHECKING:
    from headrace.catalog.base import Catalog


class Claim(msgspec.Struct, frozen=True):
    """A unit and its owner; ``owner`` is None when nobody owns it."""

    group: str
    unit: str
    owner: str | None
    token: int


def channel(group: str) -> str:
    """The channel that is notified when a unit of the group changes hands."""
    return f"claims:{group}"


def lock(group: str, unit: str) -> str:
    return f"claim:{group}:{unit}"


def asking(group: str, unit: str) -> Query:
    """The query of :func:`get`."""
    return "SELECT owner, token FROM claims WHERE group_name = ? AND unit = ?", (group, unit)


def get(tx: Tx, group: str, unit: str) -> Claim | None:
    row = tx.row(*asking(group, unit))
    return None if row is None else Claim(group, unit, row[0], row[1])


def asking_group(group: str) -> Query:
    """The query of :func:`of_group`."""
    sql = "SELECT unit, owner, token FROM claims WHERE group_name = ? AND unit <> '' ORDER BY unit"
    return sql, (group,)


def of_group(tx: Tx, group: str) -> tuple[Claim, ...]:
    """All claims of a group, by unit; also those without an owner."""
    rows = tx.rows(*asking_group(group))
    return tuple(Claim(group, unit, owner, token) for unit, owner, token in rows)


def every(tx: Tx) -> list[tuple[str, str]]:
    """All claims of all groups, as (group, unit)."""
    rows = tx.rows("SELECT group_name, unit FROM claims WHERE unit <> ''")
    return [(str(group), str(unit)) for group, unit in rows]


def all_of(tx: Tx) -> list[Claim]:
    """All claims of all groups, also those without an owner."""
    rows = tx.rows(
        "SELECT group_name, unit, owner, token FROM claims WHERE unit <> '' "
        "ORDER BY group_name, unit"
    )
    return [Claim(*row) for row in rows]


def owned_by(tx: Tx, group: str, owner: str) -> list[Claim]:
    """The claims of a group that an owner has."""
    rows = tx.rows(
        "SELECT unit, token FROM claims WHERE group_name = ? AND owner = ?", (group, owner)
    )
    return [Claim(group, unit, owner, token) for unit, token in rows]


def asking_floor(group: str) -> Query:
    """The query of :func:`floor`."""
    sql = "SELECT group_name, token FROM claims WHERE group_name IN (?, '') AND unit = ''"
    return sql, (group,)


def floor(tx: Tx, group: str) -> int:
    """A token that is not lower than any that a claim had which was deleted since."""
    return max((int(token) for _, token in tx.rows(*asking_floor(group))), default=0)


def take(tx: Tx, group: str, unit: str, owner: str) -> Claim:
    """Make ``owner`` the owner under a new token, fencing whoever was before.

    The caller holds the unit's lock.
    """
    _check(group, unit, owner)
    row = tx.row(
        "INSERT INTO claims (group_name, unit, owner, token) VALUES (?, ?, ?, "
        "1 + COALESCE((SELECT MAX(token) FROM claims WHERE group_name IN (?, '') AND unit = ''), "
        "0)) ON CONFLICT (group_name, unit) DO UPDATE SET owner = excluded.owner, "
        "token = claims.token + 1 RETURNING token",
        (group, unit, owner, group),
    )
    assert row is not None
    tx.notify(channel(group))
    return Claim(group, unit, owner, row[0])


def hand_over(tx: Tx, group: str, unit: str, owner: str, token: int) -> None:
    """Make ``owner`` the owner under the next token, which was judged under :func:`lock`."""
    _check(group, unit, owner)
    tx.later(
        "INSERT INTO claims (group_name, unit, owner, token) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (group_name, unit) DO UPDATE SET owner = excluded.owner, "
        "token = excluded.token",
        (group, unit, owner, token),
    )
    tx.notify(channel(group))


def grant(tx: Tx, group: str, wanted: Sequence[tuple[str, str, int]]) -> None:
    """Make somebody the owner of each unit, (unit, owner, token), under a token chosen elsewhere.

    Raises :class:`Fenced` unless each token is higher than the stored one, and than those of the
    group's units that are gone, or the same claim is made again.  The caller holds the units'
    locks.
    """
    held = hold(tx, group, [unit for unit, _, _ in wanted])
    rows = tx.rows(*asking_floor(group)) if len(held) < len(wanted) else []
    floor_token = max((int(token) for name, token in rows if name == group), default=0)
    for unit, owner, token in wanted:
        known = held.get(unit)
        if known is None and token <= floor_token:
            raise Fenced(group, unit, token, floor_token)
        again = known is not None and (known.token, known.owner) == (token, owner)
        if known is not None and known.token >= token and not again:
            raise Fenced(group, unit, token, known.token)
        hand_over(tx, group, unit, owner, token)


def check(tx: Tx, group: str, unit: str, token: int) -> None:
    """Raise :class:`Fenced` unless ``token`` is the current one and has an owner."""
    claim = get(tx, group, unit)
    if claim is None or claim.token != token or claim.owner is None:
        raise Fenced(group, unit, token, 0 if claim is None else claim.token)


def asking_hold(tx: Tx, group: str, units: Iterable[str]) -> list[Query]:
    """The queries of :func:`hold`."""
    return [
        (
            f"SELECT unit, owner, token FROM claims WHERE group_name = ? AND unit IN ({marks}) "
            f"ORDER BY unit{tx.by_bytes}{tx.for_update}",
            (group, *part),
        )
        for part, marks in in_parts(sorted(set(units)))
    ]


def hold(tx: Tx, group: str, units: Iterable[str]) -> dict[str, Claim]:
    """Claims by unit, which nobody else changes or checks before this transaction is over.

    The rows are locked in one order, without a named lock for each: a group may have thousands.
    An owner that stores progress, and whoever takes the unit from it, both hold its row first; so
    a takeover finds every ack that counts.
    """
    found = {}
    for query in asking_hold(tx, group, units):
        for unit, owner, token in tx.rows(*query):
            found[str(unit)] = Claim(group, str(unit), owner, int(token))
    return found


def grant_all(tx: Tx, group: str, owner: str, tokens: Mapping[str, int]) -> None:
    """Make ``owner`` the owner of units, each under a token that is higher than all before.

    Raises :class:`Fenced` if one is not; to make the same claims again changes nothing.
    """
    check_key(group, "a group's name")
    check_key(owner, "an owner's name")
    rows = [(group, unit, owner, token) for unit, token in sorted(tokens.items())]
    count = tx.executemany(
        "INSERT INTO claims (group_name, unit, owner, token) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (group_name, unit) DO UPDATE SET owner = excluded.owner, "
        "token = excluded.token WHERE claims.token < excluded.token",
        rows,
    )
    if count != len(rows):
        for unit, claim in hold(tx, group, tokens).items():
            if (claim.owner, claim.token) != (owner, tokens[unit]):
                raise Fenced(group, unit, tokens[unit], claim.token)
    if rows:
        tx.notify(channel(group))


def top(tx: Tx, group: str) -> int:
    """A token that is not lower than any that a unit of the group ever had."""
    row = tx.row("SELECT MAX(token) FROM claims WHERE group_name = ?", (group,))
    return max(floor(tx, group), 0 if row is None or row[0] is None else int(row[0]))


def release(tx: Tx, group: str, unit: str, token: int) -> None:
    """Give the unit back; raises :class:`Fenced` when the token is stale."""
    check(tx, group, unit, token)
    tx.later("UPDATE claims SET owner = NULL WHERE group_name = ? AND unit = ?", (group, unit))
    tx.notify(channel(group))


def fence(tx: Tx, group: str, units: Iterable[str] | None = None) -> None:
    """Leave units, or all of a group's, without an owner; their tokens stay as they are."""
    if units is None:
        tx.execute("UPDATE claims SET owner = NULL WHERE group_name = ?", (group,))
    else:
        tx.executemany(
            "UPDATE claims SET owner = NULL WHERE group_name = ? AND unit = ?",
            [(group, unit) for unit in units],
        )
    tx.notify(channel(group))


def raise_tokens(tx: Tx, group: str, units: Iterable[str]) -> None:
    """Give units new tokens: whoever owned them is fenced, whoever is next gets a higher one."""
    tx.executemany(
        "UPDATE claims SET token = token + 1 WHERE group_name = ? AND unit = ?",
        [(group, unit) for unit in units],
    )


def drop(tx: Tx, group: str, units: Iterable[str]) -> int:
    """Delete the claims of units that are gone for good; returns how many.

    Whoever owned one is fenced, and stays so if a unit of that name appears again.  The caller
    holds the units' locks.
    """
    going = hold(tx, group, units)
    if going:
        for part, marks in in_parts(sorted(going)):
            tx.execute(
                f"DELETE FROM claims WHERE group_name = ? AND unit IN ({marks})", (group, *part)
            )
        _raise_floor(tx, group, max(claim.token for claim in going.values()))
        tx.notify(channel(group))
    return len(going)


def retire(tx: Tx, group: str) -> None:
    """Delete the claims of a group that is deleted.

    Whoever owned a unit is fenced, and stays so if a group of that name is made again.  The caller
    holds what everybody holds who claims units of this group.
    """
    row = tx.row("SELECT MAX(token) FROM claims WHERE group_name = ?", (group,))
    if row is not None and row[0] is not None:
        forget(tx, group)
        _raise_floor(tx, "", int(row[0]))


def _raise_floor(tx: Tx, group: str, token: int) -> None:
    """No claim of a group, or of any new one, begins with this token or a lower one."""
    tx.execute(
        "INSERT INTO claims (group_name, unit, owner, token) VALUES (?, '', NULL, ?) "
        "ON CONFLICT (group_name, unit) DO UPDATE SET token = excluded.token "
        "WHERE claims.token < excluded.token",
        (group, token),
    )


def forget(tx: Tx, group: str) -> None:
    """Delete the claims of a group whose name nobody will ever use again."""
    tx.execute("DELETE FROM claims WHERE group_name = ?", (group,))
    tx.notify(channel(group))


def lost(tx: Tx, held: Iterable[tuple[str, str, int]]) -> list[Fenced]:
    """Check the (group, unit, token) that an owner believes to hold; an error for each lost one."""
    believed = list(held)
    found: dict[tuple[str, str], tuple[str | None, int]] = {}
    for part, marks in in_parts(list(dict.fromkeys(group for group, _, _ in believed))):
        query = f"SELECT group_name, unit, owner, token FROM claims WHERE group_name IN ({marks})"
        found |= {(row[0], row[1]): (row[2], row[3]) for row in tx.rows(query, part)}
    gone = []
    for group, unit, token in believed:
        owner, current = found.get((group, unit), (None, 0))
        if owner is None or current != token:
            gone.append(Fenced(group, unit, token, current))
    return gone


def _check(group: str, unit: str, owner: str) -> None:
    check_key(group, "a group's name")
    check_key(unit, "a unit's name")
    check_key(owner, "an owner's name")


class Claims:
    """Claim operations, each one transaction."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def get(self, group: str, unit: str) -> Claim | None:
        return self._catalog.read(lambda tx: get(tx, group, unit))

    def list(self, group: str) -> tuple[Claim, ...]:
        return self._catalog.read(lambda tx: of_group(tx, group))

    def take(self, group: str, unit: str, owner: str) -> Claim:
        return self._catalog.write(
            lambda tx: take(tx, group, unit, owner), locks=(lock(group, unit),)
        )

    def check(self, claim: Claim) -> None:
        self._catalog.read(lambda tx: check(tx, claim.group, claim.unit, claim.token))

    def release(self, claim: Claim) -> None:
        self._catalog.write(
            lambda tx: release(tx, claim.group, claim.unit, claim.token),
            locks=(lock(claim.group, claim.unit),),
        )
