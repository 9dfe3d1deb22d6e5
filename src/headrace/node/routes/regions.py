"""Regions: what is copied from where, groups and their homes, and what a loss would cost."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.node.routes.table import Call, Route
from headrace.node.shapes import Look
from headrace.regions.status import LinkStatus, RegionsStatus, ReplicatedGroup


class RegionsView(msgspec.Struct, frozen=True, kw_only=True):
    """This region and those that it is linked to."""

    status: RegionsStatus
    losses: tuple[RegionLoss, ...]
    age_s: float
    """How old this is: other regions are asked every few seconds at most."""


class RegionLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What it would cost if a region were lost now."""

    region: str
    here: bool
    """Whether it is this region."""
    waiting_events: int | None
    """Events that are nowhere else that this region can see; None if that cannot be seen."""
    groups: tuple[str, ...]
    """Groups that are consumed there and would have to go on elsewhere."""
    unsynced_cursors: int | None
    """Of this region: places of groups that no other region knows yet; None if none answers."""
    todo: str


async def one(call: Call) -> RegionsView:
    look = await call.node.look()
    found, age_s = await call.node.regions.look()
    seen = _visible(found, look, call)
    return RegionsView(status=seen, losses=tuple(losses(seen)), age_s=age_s)


def _visible(found: RegionsStatus, look: Look, call: Call) -> RegionsStatus:
    """Only what whoever asks may know of."""

    def sees(stream: str) -> bool:
        known = look.streams.get(stream)
        return known is not None and call.who.sees_stream(known)

    return msgspec.structs.replace(
        found,
        links=tuple(each for each in found.links if sees(each.stream)),
        groups=tuple(each for each in found.groups if any(map(sees, each.streams))),
        snapshots=tuple(each for each in found.snapshots if sees(each.stream)),
    )


def losses(found: RegionsStatus) -> Iterator[RegionLoss]:
    """What the loss of each region would cost, this one first."""
    if found.region is None:
        return
    yield RegionLoss(
        region=found.region,
        here=True,
        waiting_events=None,
        groups=tuple(each.group for each in found.groups if each.home == found.region),
        unsynced_cursors=_unsynced(found.groups),
        todo=f"in a region that is left: headrace region fail-over --lost {found.region}",
    )
    for region in sorted({each.region for each in found.links}):
        yield RegionLoss(
            region=region,
            here=False,
            waiting_events=_waiting([each for each in found.links if each.region == region]),
            groups=tuple(each.group for each in found.groups if each.home == region),
            unsynced_cursors=None,
            todo=f"headrace region fail-over --lost {region} --dry-run",
        )


def _waiting(links: list[LinkStatus]) -> int | None:
    counts = [each.lag_events for each in links]
    return None if None in counts else sum(each or 0 for each in counts)


def _unsynced(groups: tuple[ReplicatedGroup, ...]) -> int | None:
    """Cursors that not even the region that knows most of them has."""
    total = 0
    for each in groups:
        known = [count for count in each.behind.values() if count is not None]
        if each.behind and not known:
            return None
        total += min(known, default=0)
    return total


ROUTES = (
    Route(
        method="GET",
        path="/regions",
        summary="This region, what it copies from others, and what a loss would cost",
        handler=one,
        answer=RegionsView,
        cli="headrace region status",
    ),
)
