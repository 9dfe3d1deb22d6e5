"""Naming a region, and linking a stream to other regions.

A link stands in every region that has the stream, with the other regions in it.  It is made from
each side, or from one that may write in both.  The stream is made where it is missing, in the same
form; where it is there in another form, the link is refused with the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import msgspec

from headrace.catalog import Tx, entries, lane_filters, lanes, schema, streams
from headrace.catalog.lanes import LaneStep
from headrace.catalog.streams import Stream
from headrace.errors import (
    HeadraceError,
    LinkError,
    NotLinkedError,
    RegionNameError,
    SubjectOverlapError,
    UnknownStreamError,
)
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.regions.core.origins import lane_of
from headrace.regions.linkable import (
    check_filter,
    check_history,
    check_linkable,
    check_scaling,
    differences,
    tiles_of,
)
from headrace.regions.opening import open_region
from headrace.regions.records import (
    ALL,
    LINKS_BUCKET,
    NONE,
    LinkMember,
    LinkRecord,
    Region,
    check_region_name,
    get_link,
    get_region,
    put_link,
    put_region,
    require_link,
    require_region,
)
from headrace.regions.runtime import keeping
from headrace.regions.runtime.beginning import begin_places
from headrace.regions.runtime.neighbours import address
from headrace.subjects.arguments import check_value

LOCKS = ("settings", entries.lock(LINKS_BUCKET))


def name_region(log: Log, name: str) -> Region:
    """Give this catalog a region's name, once and for all."""
    check_region_name(name)

    def run(tx: Tx) -> Region:
        found = get_region(tx)
        if found is not None and found.name != name:
            raise RegionNameError(
                f"this catalog is region {found.name!r} already, and its events carry that name; "
                f"leave it, or make another catalog for {name!r}"
            )
        region = found or Region(name)
        put_region(tx, region)
        return region

    return log.catalog.write(run, locks=LOCKS)


class Linked(msgspec.Struct, frozen=True):
    """A link that was made: the regions that know of it by now, and those that do not."""

    stream: str
    regions: tuple[str, ...]
    created_in: tuple[str, ...] = ()
    one_sided: tuple[str, ...] = ()
    """Regions in which it still has to be made, from their side."""


def link(
    log: Log,
    stream: str,
    region: str,
    *,
    here: str,
    catalog: str | Path,
    store: str | Path | None = None,
    credentials: str | None = None,
    writers: str = ALL,
    backfill: str | datetime = ALL,
    filter: str | None = None,
    one_sided: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Linked:
    """Link a stream to another region; ``here`` is the address of this one for the others."""
    me = log.catalog.read(require_region)
    check_region_name(region)
    member = LinkMember(
        region=region,
        catalog=_address(catalog),
        store=None if store is None else _address(store),
        credentials=credentials,
    )
    if region == me.name:
        raise LinkError(f"region {region!r} is this one; link a stream to another region")
    _check_options(me, member, writers, log.catalog.read(lambda tx: get_link(tx, stream)))
    since, variables = _backfill(backfill), os.environ if environ is None else environ
    there = _open_other(log, member, variables, look=one_sided)
    try:
        mine, theirs = _find_both(log, there, stream, region)
        check_scaling(log, there, mine, theirs, writers)
        wanted = check_filter(log, there, mine, theirs, filter)
        check_history(mine, theirs, wanted, since)
        created = _make_missing(log, me.name, mine, there, region, theirs, one_sided)
        own = LinkMember(region=me.name, catalog=_address(here))
        last = max(s.number for each in (mine, theirs) if each for s in each.segments)
        options = LinkRecord(
            stream=stream, writers=writers, backfill=since, first_new=last + 1, filter=wanted
        )
        record = _join(log, options, [member], me)
        if one_sided:
            return Linked(stream, (me.name,), created, (region,))
        _join(there, options, [own, *record.members], there.catalog.read(require_region))
        # Here and now, and not when the agents come: without backfill, nothing is left out then.
        begin_places(log, there, region)
        begin_places(there, log, me.name)
        return _tell_others(record, member, me, created, variables)
    finally:
        there.catalog.close()


def _check_options(me: Region, member: LinkMember, writers: str, known: LinkRecord | None) -> None:
    regions = {me.name, member.region} | {m.region for m in (known.members if known else ())}
    same = None if known is None else known.member(member.region)
    if same is not None and same.catalog != member.catalog:
        raise LinkError(
            f"region {member.region!r} of this stream is the catalog at {same.catalog}; give that "
            "address, or give the other catalog a name of its own"
        )
    if writers != ALL and writers not in regions:
        raise LinkError(
            f"writers={writers!r} is none of the stream's regions; give 'all' or one of "
            f"{', '.join(sorted(regions))}"
        )
    if known is not None and known.writers != writers:
        raise LinkError(
            f"the stream is linked with writers={known.writers!r}; link it with the same, or take "
            "it out of the other regions first, with: headrace region unlink"
        )


def _open_other(log: Log, member: LinkMember, variables: Mapping[str, str], *, look: bool) -> Log:
    there = open_region(member, variables, look=look)
    try:
        found = there.catalog.read(get_region)
        if found is None:
            raise RegionNameError(
                f"the catalog at {member.catalog} is no region yet; name it with: headrace "
                f"--catalog {member.catalog} region name {member.region}"
            )
        if _catalog_id(there) == _catalog_id(log):
            raise LinkError(f"{member.catalog} is this very catalog; give another region's")
        if found.name != member.region:
            raise RegionNameError(
                f"the catalog at {member.catalog} is region {found.name!r}, not {member.region!r}"
            )
    except BaseException:
        there.catalog.close()
        raise
    return there


def _catalog_id(log: Log) -> str | None:
    return log.catalog.read(lambda tx: schema.get_setting(tx, "catalog_id"))


def _find(log: Log, stream: str) -> Stream | None:
    return log.catalog.read(lambda tx: streams.get(tx, stream), snapshot=True)


def _find_both(
    log: Log, there: Log, stream: str, region: str
) -> tuple[Stream | None, Stream | None]:
    mine, theirs = _find(log, stream), _find(there, stream)
    if mine is None and theirs is None:
        raise UnknownStreamError(
            f"there is no stream {stream!r}, here or in {region!r}; create it first"
        )
    return mine, theirs


def _make_missing(
    log: Log,
    here: str,
    mine: Stream | None,
    there: Log,
    region: str,
    theirs: Stream | None,
    one_sided: bool,
) -> tuple[str, ...]:
    model = mine or theirs
    assert model is not None
    check_linkable(model)
    if mine is not None and theirs is not None:
        if found := differences(mine, theirs):
            raise LinkError(
                f"stream {mine.name!r} differs in {region!r}: {'; '.join(found)}; make it the same "
                "there, or delete it there and link again"
            )
        return ()
    if mine is not None and one_sided:
        raise LinkError(
            f"stream {mine.name!r} is not in {region!r}; create it there first, or link with "
            "rights in both"
        )
    target, name = (log, here) if mine is None else (there, region)
    # Its history of splits and merges follows with its events.
    first = {n: (s.range_lo, s.range_hi) for n, s in tiles_of(model).items() if not s.predecessors}
    try:
        target.create_stream(model.name, model.config, len(first), as_there=first)
    except SubjectOverlapError as error:
        raise LinkError(
            f"stream {model.name!r} cannot be made in {name!r}: {error}; change or delete that "
            "stream there, and link again"
        ) from error
    return (name,)


def _join(log: Log, options: LinkRecord, members: list[LinkMember], me: Region) -> LinkRecord:
    """Put regions into a link on one side; the stream's events get lanes."""
    stream = log.stream(options.stream)

    def run(tx: Tx) -> LinkRecord:
        known = get_link(tx, options.stream) or options
        others = {m.region: m for m in known.members}
        for member in members:
            if member.region != me.name:
                others.setdefault(member.region, member)
        record = msgspec.structs.replace(known, members=tuple(others[n] for n in sorted(others)))
        history = me.lane + (lane_filters.STAYS if record.filter else "")
        for segment in streams.require(tx, options.stream).segments:
            if segment.lane is None:
                lanes.number_history(tx, segment.id, history, segment.tail, segment.head)
            lanes.begin(tx, segment.id, record.lane_in(me))
        put_link(tx, record)
        keeping.begin(tx, record)
        tx.notify(streams.channel(stream.id))
        return record

    done = log.catalog.write(run, locks=[*LOCKS, streams.lock(stream.id)])
    log.routes.forget(options.stream)
    return done


def _tell_others(
    record: LinkRecord,
    added: LinkMember,
    me: Region,
    created: tuple[str, ...],
    variables: Mapping[str, str],
) -> Linked:
    """The regions that had the stream before learn of the new one, where they can be reached."""
    told, untold = [me.name, added.region], []
    for member in record.members:
        if member.region == added.region:
            continue
        try:
            other = open_log(address(member, variables), member.store, create=False)
        except HeadraceError:
            untold.append(member.region)
            continue
        try:
            _join(other, record, [added], other.catalog.read(require_region))
            told.append(member.region)
        finally:
            other.catalog.close()
    return Linked(record.stream, tuple(sorted(told)), created, one_sided=tuple(untold))


def change_member(
    log: Log, stream: str, region: str, change: Callable[[LinkMember], LinkMember | None]
) -> LinkRecord:
    """Change how this region sees another one of a link; None takes it out."""

    def run(tx: Tx) -> LinkRecord:
        found = require_link(tx, stream)
        if found.member(region) is None:
            raise unknown_region(found, region)
        members = []
        for member in found.members:
            changed = change(member) if member.region == region else member
            if changed is not None:
                members.append(changed)
        record = msgspec.structs.replace(found, members=tuple(members))
        put_link(tx, record)
        keeping.begin(tx, record)
        return record

    return log.catalog.write(run, locks=LOCKS)


def step_for(log: Log, stream: str, regions: Sequence[str]) -> LaneStep:
    """The lane of events that go to some regions only."""
    check_value("regions", regions, Sequence[str])

    def look(tx: Tx) -> tuple[LinkRecord | None, Region | None]:
        return get_link(tx, stream), get_region(tx)

    link, me = log.catalog.read(look)
    if link is None or me is None:
        raise NotLinkedError(stream)
    for region in regions:
        if region != me.name and link.member(region) is None:
            raise unknown_region(link, region)
    return LaneStep(audience=lane_of("", [each for each in regions if each != me.name]))


def unknown_region(link: LinkRecord, region: str) -> LinkError:
    """A region was named that a stream is not linked to."""
    known = ", ".join(member.region for member in link.members) or "no other region"
    return LinkError(f"stream {link.stream!r} is linked to {known}, and not to {region!r}")


def _backfill(given: str | datetime) -> str:
    if isinstance(given, str) and given in (ALL, NONE):
        return given
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise LinkError(f"backfill={given!r}: give 'all', 'none' or a time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment > datetime.now(UTC):
        raise LinkError(f"backfill={given!r} lies in the future; give 'none' to copy no history")
    return moment.isoformat()


def _address(place: str | Path) -> str:
    """An address that is good everywhere on this machine, and holds no password."""
    text = str(place)
    if "://" not in text:
        return str(Path(text).expanduser().absolute())
    parts = urlsplit(text)
    if parts.password is not None or "password" in dict(parse_qsl(parts.query)):
        raise LinkError(
            "an address that is stored must not hold a password; leave it out, and name where it "
            "is with credentials=env:NAME"
        )
    return text
