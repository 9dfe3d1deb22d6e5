"""A declared group: what is stored about it beside its progress, and making and deleting it."""

from __future__ import annotations

import msgspec

from headrace.catalog import Query, Tx, entries, leases, streams
from headrace.catalog.records import Records
from headrace.catalog.streams import Stream
from headrace.errors import (
    InvalidInputError,
    SharedGroupBusyError,
    SharedGroupExistsError,
    UnknownSharedGroupError,
)
from headrace.groups import homes
from headrace.groups.names import SHARED_BUCKET
from headrace.groups.shared import deciding, ended_units, starts
from headrace.groups.shared.core.naming import group_key
from headrace.groups.shared.core.settings import Balance, LeaderSettings, changed_settings
from headrace.groups.shared.keys import STATUS_BUCKET as STATUS_BUCKET
from headrace.groups.shared.keys import finished_bucket
from headrace.groups.shared.runtime.state import lease_name
from headrace.log import writers
from headrace.subjects import overlaps

BUCKET = SHARED_BUCKET


class GroupProperties(msgspec.Struct, frozen=True, kw_only=True):
    """A shared group as it was declared."""

    group: str
    filter: str
    start: str
    """``earliest``, ``now`` or a time."""
    created_us: int = 0
    scale_for_members: bool = False
    """Split the hottest segment while there are more members than segments."""
    settings: LeaderSettings = LeaderSettings()

    @property
    def key(self) -> str:
        """The name under which claims and progress are kept."""
        return group_key(self.group, self.filter)

    @property
    def balance(self) -> Balance:
        """What a fair share is measured in."""
        return self.settings.balance


_records = Records(
    GroupProperties,
    "shared group",
    "delete it: headrace group shared rm '{name}'",
    bucket=BUCKET,
    key=lambda record: record.key,
)


class BorrowerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A member as its leader sees it."""

    member: str
    """The borrower's identifier: session, incarnation and a count."""
    session: str
    units: int
    share: int
    benched_ms: int = 0
    """It was evicted, and gets nothing for this long yet."""
    unreached: str = ""
    """Why it speaks to its leader through the catalog, with both addresses; else empty."""

    @property
    def why_idle(self) -> str:
        """Why it has no unit; empty if it has."""
        if self.units:
            return ""
        if self.benched_ms:
            return f"evicted; gets nothing for another {self.benched_ms / 1000:.0f} s"
        if self.share:
            return "its units are on their way"
        return "there are more members than segments with something to read: stands by"


class LeaderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader last said about its group."""

    leader: str
    token: int
    at_us: int
    members: tuple[BorrowerStatus, ...] = ()


_statuses = Records(LeaderStatus, "the status of shared group")


def put(tx: Tx, properties: GroupProperties) -> None:
    """Store a group's properties; the caller holds the bucket's lock."""
    entries.store(tx, BUCKET, properties.key, _records.encode(properties.key, properties))


def asking(key: str) -> Query:
    """The query of :func:`get`."""
    return entries.asking(BUCKET, key)


def get(tx: Tx, key: str) -> GroupProperties | None:
    """The group under a key."""
    entry = entries.get(tx, BUCKET, key)
    return None if entry is None else _records.decode(key, entry.value or b"")


def require(tx: Tx, key: str) -> GroupProperties:
    """The group under a key, or an error that lists those there are."""
    found = get(tx, key)
    if found is None:
        raise unknown(tx, key)
    return found


def unknown(tx: Tx, name: str) -> UnknownSharedGroupError:
    """The error for a group that does not exist."""
    known = sorted(each.key for each in all_groups(tx))[:20]
    listed = f"known: {', '.join(known)}" if known else "there are none yet"
    return UnknownSharedGroupError(f"there is no shared group {name!r}; {listed}")


def find(tx: Tx, group: str, filter: str | None = None) -> GroupProperties:
    """A group by its name, and by its filter if the name alone does not tell."""
    return require(tx, find_key(tx, group, filter))


def find_key(tx: Tx, group: str, filter: str | None = None) -> str:
    """The key of a group, also if what is stored of it cannot be read."""
    if filter is not None:
        keys = [key for key in entries.keys(tx, BUCKET, "") if key == group_key(group, filter)]
    else:  # by its name, or by the whole key
        keys = entries.keys(tx, BUCKET, f"{group}:")
        keys += [] if entries.get(tx, BUCKET, group) is None else [group]
    if not keys:
        raise unknown(tx, group if filter is None else group_key(group, filter))
    if len(keys) > 1:
        filters = ", ".join(key.removeprefix(f"{group}:") for key in keys)
        raise InvalidInputError(f"group {group!r} has several filters: say which of {filters}")
    return keys[0]


def all_groups(tx: Tx) -> list[GroupProperties]:
    """Every group, by key."""
    groups = _records.readable(entries.changes(tx, BUCKET, 0).entries)
    return sorted(groups, key=lambda each: each.key)


def changed(tx: Tx, since: int) -> tuple[int, list[GroupProperties]]:
    """The groups that were stored after a revision, and the revision now."""
    found = entries.changes(tx, BUCKET, since)
    return found.revision, _records.readable(found.entries)


def asking_declare(key: str) -> tuple[Query, ...]:
    """The queries of :func:`declare`."""
    return (asking(key), *deciding.asking(key), *starts.asking_begin(key))


def declare(
    tx: Tx,
    properties: GroupProperties,
    start: starts.Start,
    places: starts.Places,
    *,
    exist_ok: bool,
) -> GroupProperties:
    """Make a group; one that exists stays as it is, and must be the same unless `exist_ok`."""
    tx.foresee(*asking_declare(properties.key))
    found = get(tx, properties.key)
    if found is None:
        made = msgspec.structs.replace(properties, created_us=tx.now_us())
        _check_splitting(tx, made)
        put(tx, made)
        starts.begin(tx, made.key, made.filter, start, places)
        reason = f"the group was made: it consumes {made.filter} from {made.start}"
        deciding.configured(tx, made.key, f"{reason}, balanced by {made.balance}")
        return made
    same = msgspec.structs.replace(properties, created_us=found.created_us) == found
    if not same and not exist_ok:
        raise SharedGroupExistsError(
            f"shared group {properties.key} exists already, with other properties; delete it first"
        )
    return found


def configure(
    tx: Tx,
    key: str,
    *,
    settings: LeaderSettings | None = None,
    balance: Balance | None = None,
    scale_for_members: bool | None = None,
    **changes: int,
) -> GroupProperties:
    """Change how a group is led; its leader hears of it and goes on with that."""
    found = require(tx, key)
    changed = altered(
        found, settings=settings, balance=balance, scale_for_members=scale_for_members, **changes
    )
    if changed != found:
        _check_splitting(tx, changed)
        put(tx, changed)
        deciding.configured(tx, key, f"{_difference(found, changed)} by an administrator")
    return changed


def altered(
    found: GroupProperties,
    *,
    settings: LeaderSettings | None = None,
    balance: Balance | None = None,
    scale_for_members: bool | None = None,
    **changes: int,
) -> GroupProperties:
    """A group with some of its settings changed; what is not given stays."""
    chosen = changed_settings(found.settings if settings is None else settings, changes)
    if balance is not None:
        chosen = msgspec.structs.replace(chosen, balance=balance)
    scale = found.scale_for_members if scale_for_members is None else scale_for_members
    return msgspec.structs.replace(found, settings=chosen, scale_for_members=scale)


def splitting(tx: Tx, stream: Stream) -> list[str]:
    """The groups that split a stream for their members."""
    _, found = changed(tx, 0)
    return [each.key for each in found if each.scale_for_members and _reads(each, stream)]


def _check_splitting(tx: Tx, group: GroupProperties) -> None:
    """Refuse a group that would split a stream which several regions write."""
    if not group.scale_for_members or not entries.latest(tx, writers.LINKS_BUCKET):
        return
    for stream in streams.all_streams(tx, internal=False):
        if _reads(group, stream):
            writers.refuse_several(tx, stream, "it cannot be split for the members of a group")


def _reads(group: GroupProperties, stream: Stream) -> bool:
    return any(overlaps(group.filter, subject) for subject in stream.config.subjects)


def _difference(before: GroupProperties, after: GroupProperties) -> str:
    """What was set anew, in words."""
    told = [
        f"{field} was set from {old} to {new}"
        for one, other in ((before, after), (before.settings, after.settings))
        for field in one.__struct_fields__
        if field != "settings" and (old := getattr(one, field)) != (new := getattr(other, field))
    ]
    return ", ".join(told)


def declare_locks(key: str) -> tuple[str, ...]:
    """The locks for :func:`declare`."""
    buckets = (BUCKET, finished_bucket(key), ended_units.handed_bucket(key))
    return (*(entries.lock(bucket) for bucket in buckets), *deciding.locks(key))


def delete(tx: Tx, key: str, *, force: bool) -> None:
    """Delete a group and all its progress; its leader loses the lease at once."""
    if entries.get(tx, BUCKET, key) is None:
        raise unknown(tx, key)
    lease = leases.get(tx, lease_name(key))
    status = get_status(tx, key)
    if lease is not None and status is not None and status.members and not force:
        raise SharedGroupBusyError(key, len(status.members))
    leases.retire(tx, lease_name(key))
    entries.delete(tx, BUCKET, key)
    entries.delete(tx, STATUS_BUCKET, key)
    ended_units.forget_group(tx, key)
    homes.deleted_here(tx, key)


def delete_locks(key: str) -> tuple[str, ...]:
    """The locks for :func:`delete`."""
    lease = leases.lock(lease_name(key))
    groups = entries.lock(homes.GROUPS_BUCKET)
    return (*declare_locks(key), entries.lock(STATUS_BUCKET), groups, lease)


def put_status(tx: Tx, key: str, status: LeaderStatus) -> None:
    """Store what a leader says about its group, if it still leads."""
    leases.check(tx, lease_name(key), status.token)
    stamped = msgspec.structs.replace(status, at_us=tx.now_us())
    entries.store(tx, STATUS_BUCKET, key, _statuses.encode(key, stamped))


def status_locks(key: str) -> tuple[str, ...]:
    """The locks for :func:`put_status`."""
    return (entries.lock(STATUS_BUCKET), leases.lock(lease_name(key)))


def get_status(tx: Tx, key: str) -> LeaderStatus | None:
    """What the group's leader said last."""
    entry = entries.get(tx, STATUS_BUCKET, key)
    return _statuses.decode_or(key, entry.value, None) if entry is not None else None


def unreached(tx: Tx) -> list[tuple[str, BorrowerStatus]]:
    """The members that cannot dial their leader, of all groups that are led, with the group."""
    found = []
    for entry in entries.changes(tx, STATUS_BUCKET, 0).entries:
        status = None
        if entry.value is not None:
            status = _statuses.decode_or(entry.key, entry.value, None)
        far = [] if status is None else [each for each in status.members if each.unreached]
        if far and status is not None:
            lease = leases.get(tx, lease_name(entry.key))
            if lease is not None and lease.token == status.token:
                found += [(entry.key, each) for each in far]
    return found
