"""Which member consumes which partitions.

Theory of operation
-------------------
Both distributions begin alike: names are de-duplicated, sorted by their UTF-8 bytes and cut off
at the number of partitions.  Names beyond the cut are members that own nothing.

``blocks`` gives each member a run of ``partitions // members`` and deals the remainder out, one
each, from the first member on.  It depends on nothing but the names, so every instance works it
out for itself; but one more member shifts most runs.

``sticky`` starts from the assignment before the change.  Let n partitions go to k members, and
``low = n // k``.  Balance within one means that exactly ``n % k`` members own ``low + 1`` and the
others ``low``.  A member keeps at most what it may own, so the number of partitions that stay is
at most the sum of min(owned, low) plus one for each *large* place held by a member that owned
more than ``low``.  Giving the large places to those members first reaches that bound, hence no
balanced assignment moves fewer partitions.  What must move goes, lowest first, to the members
with room, in the order of their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Assignment = dict[str, tuple[int, ...]]
"""Partitions by member, ascending; every member is there, also one that owns nothing."""


def sorted_members(members: Iterable[str]) -> list[str]:
    """Names without repeats, in the order of their UTF-8 bytes."""
    return sorted(set(members), key=lambda name: name.encode("utf-8", "surrogatepass"))


def effective_members(members: Iterable[str], partitions: int) -> list[str]:
    """The members that can own something: sorted, and no more than there are partitions."""
    return sorted_members(members)[:partitions]


def blocks(members: Iterable[str], partitions: int) -> Assignment:
    """The document's distribution: runs of equal length, and the remainder dealt out.

    >>> blocks(["m2", "m1"], 5)
    {'m1': (0, 1, 4), 'm2': (2, 3)}
    """
    names = sorted_members(members)
    active = names[:partitions]
    made: Assignment = dict.fromkeys(names, ())
    if not active:
        return made
    per_member = partitions // len(active)
    dealt_from = per_member * len(active)
    for index, name in enumerate(active):
        owned = tuple(range(index * per_member, (index + 1) * per_member))
        rest = dealt_from + index
        made[name] = (*owned, rest) if rest < partitions else owned
    return made


def sticky(
    previous: Mapping[str, Sequence[int]], members: Iterable[str], partitions: int
) -> Assignment:
    """Balanced within one, with the fewest partitions moved from ``previous``.

    >>> sticky({"m1": (0, 1, 2, 3)}, ["m1", "m2"], 4)
    {'m1': (0, 1), 'm2': (2, 3)}
    """
    names = sorted_members(members)
    active = names[:partitions]
    made: Assignment = dict.fromkeys(names, ())
    if not active:
        return made
    low, large_places = divmod(partitions, len(active))
    owner = {p: name for name in reversed(active) for p in previous.get(name, ())}
    owned: dict[str, list[int]] = {name: [] for name in active}
    for p in range(partitions):
        if p in owner:
            owned[owner[p]].append(p)
    # Large places go first to those who keep one more partition by it.
    claimants = sorted(active, key=lambda name: len(owned[name]) <= low)
    room = dict.fromkeys(active, low)
    for name in claimants[:large_places]:
        room[name] = low + 1
    kept = {name: owned[name][: room[name]] for name in active}
    staying = {p for partitions_kept in kept.values() for p in partitions_kept}
    moving = iter([p for p in range(partitions) if p not in staying])
    for name in active:
        missing = room[name] - len(kept[name])
        kept[name].extend(next(moving) for _ in range(missing))
        made[name] = tuple(sorted(kept[name]))
    return made


def owner_of_each(assignment: Mapping[str, Sequence[int]]) -> dict[int, str]:
    """An assignment turned round: the member by partition."""
    return {p: member for member, owned in assignment.items() for p in owned}


def moved(before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]]) -> list[int]:
    """Partitions whose owner changes, ascending; from or to nobody counts too."""
    old, new = owner_of_each(before), owner_of_each(after)
    return sorted(p for p in old.keys() | new.keys() if old.get(p) != new.get(p))
