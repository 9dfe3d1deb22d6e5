"""A region that is gone, paused or back.

After a loss, a survivor is told so by a person: groups that were at home in the lost region are at
home here, at the last place that crossed.  When the region returns it reads that it is no longer
their home; what it had published and was not copied yet comes over then.
"""

from __future__ import annotations

import msgspec

from headrace.catalog import Tx, replicas
from headrace.errors import HeadraceError, LinkError, SwitchRefusedError
from headrace.groups.homes import GroupRecord, HomeStamp
from headrace.log.log import Log
from headrace.regions.linking import change_member, unknown_region
from headrace.regions.moving import LOCKS
from headrace.regions.records import (
    LinkMember,
    groups,
    links,
    put_group,
    require_group,
    require_region,
)
from headrace.regions.runtime.neighbours import Neighbours


class FailOverReport(msgspec.Struct, frozen=True):
    """What a fail-over moved, and how old what is known of the lost region is."""

    lost: str
    region: str
    groups: tuple[str, ...]
    """Groups that are at home here now."""
    streams: tuple[tuple[str, float], ...]
    """Streams, with the seconds since something last came from the lost region."""
    dry_run: bool = False


def fail_over(
    log: Log, lost: str, neighbours: Neighbours, *, force: bool = False, dry_run: bool = False
) -> FailOverReport:
    """A region is gone: its groups are at home here, at the last place that was known of them."""
    me = log.catalog.read(require_region).name
    if lost == me:
        raise SwitchRefusedError(f"region {lost!r} is this one; run the command in a survivor")
    linked = log.catalog.read(links)
    members = {name: m for name, link in linked.items() if (m := link.member(lost)) is not None}
    if not members:
        raise next(
            (unknown_region(each, lost) for each in linked.values()),
            LinkError(f"no stream is linked to region {lost!r}"),
        )
    if not force and _answers(neighbours, next(iter(members.values()))):
        raise SwitchRefusedError(
            f"region {lost!r} answers: move groups with `headrace region switch`, or say --force "
            "if its members are to be cut off"
        )
    moved = log.catalog.read(
        lambda tx: [
            key
            for key, record in groups(tx).items()
            if not record.deleted and (record.home == lost or _comes_from(record, lost, me))
        ]
    )
    report = FailOverReport(
        lost, me, tuple(sorted(moved)), log.catalog.read(lambda tx: _ages(tx, lost)), dry_run
    )
    if dry_run:
        return report
    for name in members:
        change_member(log, name, lost, lambda m: msgspec.structs.replace(m, state="lost"))

    def run(tx: Tx) -> None:
        for key in moved:
            found = require_group(tx, key)
            stamp = HomeStamp(found.stamp.counter + 1, me)
            put_group(
                tx,
                msgspec.structs.replace(found, home=me, stamp=stamp, handing=None, ready=True),
            )
        tx.notify(replicas.CHANNEL)

    log.catalog.write(run, locks=LOCKS)
    return report


def _answers(neighbours: Neighbours, member: LinkMember) -> bool:
    try:
        neighbours.log(member).catalog.read(require_region)
    except HeadraceError:
        neighbours.drop(member)
        return False
    return True


def _comes_from(record: GroupRecord, lost: str, me: str) -> bool:
    """Whether a group was on its way here when its region was lost."""
    handing = record.handing
    return record.home == me and handing is not None and handing.source == lost


def _ages(tx: Tx, lost: str) -> tuple[tuple[str, float], ...]:
    """When something last came from a region, by stream."""
    now_us = tx.now_us()
    names = replicas.streams_of(tx, lost)
    return tuple((name, max(0, now_us - moved_us) / 1e6) for name, moved_us in names)


def set_state(log: Log, region: str, state: str) -> list[str]:
    """Pause, resume or take back a region in all links; returns the streams."""
    changed = []
    for name, link in log.catalog.read(links).items():
        if link.member(region) is not None:
            change_member(
                log,
                name,
                region,
                lambda m: msgspec.structs.replace(m, state=state),
            )
            changed.append(name)
    if not changed:
        raise LinkError(f"no stream is linked to region {region!r}")
    return changed
