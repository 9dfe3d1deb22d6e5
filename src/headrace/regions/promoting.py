"""Making this region the one that writes a stream, of those that one region writes.

The writer is asked, stops, and this region begins when everything that was published there is here:
:mod:`headrace.regions.core.writing`.  If the writer is gone, a person says so by force.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.catalog import Tx
from headrace.errors import HeadraceError, SwitchError, SwitchRefusedError
from headrace.host.clock import rest_s, steady_s
from headrace.log.log import Log
from headrace.regions.core.writing import Writing
from headrace.regions.moving import POLL_S, obstacles
from headrace.regions.records import (
    ALL,
    LinkMember,
    LinkRecord,
    check_timeout,
    get_link,
    require_link,
    require_region,
)
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.writers import change
from headrace.regions.status import behind_of


class PromoteReport(msgspec.Struct, frozen=True):
    """A stream that is written in this region now, or would be."""

    stream: str
    source: str
    """The region that wrote it."""
    target: str
    lag_events: int | None = None
    """Events of the old writer that were not here when it began; None if that was not known."""
    took_s: float = 0.0
    forced: bool = False
    dry_run: bool = False


def promote(
    log: Log,
    stream: str,
    neighbours: Neighbours,
    *,
    timeout_s: float = 30.0,
    force: bool = False,
    dry_run: bool = False,
    clock: Callable[[], float] = steady_s,
) -> PromoteReport:
    """Publish in this region from now on, and no longer where the stream was written."""
    check_timeout(timeout_s)
    began = clock()
    me = log.catalog.read(require_region)
    link = log.catalog.read(lambda tx: require_link(tx, stream))
    member = _writer(link, me.name)
    report = PromoteReport(stream, link.writers, me.name, forced=force, dry_run=dry_run)
    if not force:
        found = obstacles(log, member, neighbours)
        if found:
            raise SwitchRefusedError(
                f"stream {stream!r} stays written in {link.writers}: {'; '.join(found)}; if that "
                "region is gone, say --force"
            )
    if dry_run or force:
        lag = _lag(log, neighbours, link, member)
        if force and not dry_run:
            change(log, me, stream, lambda mine: mine.force(me.name))
        return msgspec.structs.replace(report, lag_events=lag, took_s=clock() - began)
    change(log, me, stream, lambda mine: mine.want(me.name))
    while log.catalog.read(lambda tx: require_link(tx, stream)).writers != me.name:
        if clock() - began > timeout_s:
            _withdraw(log, stream, neighbours, member, timeout_s)
        rest_s(POLL_S)
    return msgspec.structs.replace(report, lag_events=0, took_s=clock() - began)


def _writer(link: LinkRecord, me: str) -> LinkMember:
    if link.writers == ALL:
        raise SwitchRefusedError(
            f"stream {link.stream!r} is written in every region; publish here as well"
        )
    member = link.member(link.writers)
    if link.writers == me or member is None:
        raise SwitchRefusedError(f"stream {link.stream!r} is written in {link.writers} already")
    return member


def _lag(log: Log, neighbours: Neighbours, link: LinkRecord, member: LinkMember) -> int | None:
    try:
        return behind_of(log, neighbours, link, member)
    except HeadraceError:
        neighbours.drop(member)
        return None


def _withdraw(
    log: Log, stream: str, neighbours: Neighbours, member: LinkMember, timeout_s: float
) -> None:
    """It took too long: all stays as it was, unless the writer has stopped already."""
    me = log.catalog.read(require_region)
    change(log, me, stream, Writing.withdraw)

    def look(tx: Tx) -> str:
        found = get_link(tx, stream)
        return "" if found is None else found.writers

    try:
        there = neighbours.log(member).catalog.read(look)
    except HeadraceError:
        there = ""
    if there == me.name:
        raise SwitchError(
            f"stream {stream!r} is no longer written in {member.region}, and not all that was "
            f"published there has come within {timeout_s:g} s; it is written here as soon as it has"
        )
    raise SwitchError(
        f"stream {stream!r} stays written in {member.region}: its agent did not hand it over "
        f"within {timeout_s:g} s"
    )
