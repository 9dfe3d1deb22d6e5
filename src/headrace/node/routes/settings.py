"""How shared groups are led and what reader groups keep: looked at and changed."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.catalog import Tx
from headrace.errors import InvalidInputError
from headrace.groups import names
from headrace.groups.names import SHARED, FullName
from headrace.groups.readers import admin, info, operations
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.names import FAMILY, ReaderGroupName
from headrace.groups.readers.runtime.hub import hub_of
from headrace.groups.readers.runtime.transaction import GroupCommit
from headrace.groups.shared import properties
from headrace.groups.shared.core.settings import Balance
from headrace.groups.shared.properties import GroupProperties
from headrace.node.problems import Problem
from headrace.node.routes.changes import Body, ChangeDone, change_route
from headrace.node.routes.groups import group_of
from headrace.node.routes.table import Call, Route
from headrace.node.shapes import revision

Millis = Annotated[int, Meta(ge=1, le=86_400_000)]
KeptCount = Annotated[int, Meta(ge=1, le=100)]


class LedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a shared group is led."""

    balance: str
    scale_for_members: bool
    lag_slack_percent: int
    stall_timeout_ms: int
    revoke_timeout_ms: int
    borrower_timeout_ms: int
    lease_ttl_ms: int
    heartbeat_ms: int


class KeptSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader group keeps."""

    retain: str
    checkpoint_every_s: float
    """How often it takes a checkpoint by itself; 0: never."""
    checkpoints_kept: int
    checkpoints_outstanding: int


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a group that can be changed while it runs."""

    group: str
    kind: str
    revision: str
    """A change of the settings names it, and is refused when they have moved."""
    shared: LedSettings | None = None
    reader: KeptSettings | None = None


class ChangeSettings(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New settings of a shared group or of a reader group; what is not given stays."""

    revision: str
    """The revision of the settings that the change is based on."""
    dry_run: bool = False
    balance: Literal["count", "lag"] | None = None
    scale_for_members: bool | None = None
    lag_slack_percent: Millis | None = None
    stall_timeout_ms: Millis | None = None
    revoke_timeout_ms: Millis | None = None
    borrower_timeout_ms: Millis | None = None
    lease_ttl_ms: Millis | None = None
    heartbeat_ms: Millis | None = None
    retain: Literal["positions", "checkpoint", "manual", "nothing"] | None = None
    checkpoint_every_s: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    checkpoints_kept: KeptCount | None = None
    checkpoints_outstanding: KeptCount | None = None


_OF_SHARED = LedSettings.__struct_fields__
_OF_READERS = KeptSettings.__struct_fields__


async def _named(call: Call) -> FullName:
    """The group in the path, of a kind that has settings."""
    _, view = await group_of(call)
    name = names.parse(view.group)
    assert name is not None, view.group
    if name.family not in (SHARED, FAMILY):
        raise InvalidInputError(
            f"{view.group} is a {view.kind} group; shared groups and reader groups have settings "
            "that can be changed"
        )
    return name


async def settings(call: Call) -> GroupSettings:
    name = await _named(call)
    catalog = call.node.hr.log.catalog
    if name.family == SHARED:
        led = await call.node.host.in_thread(
            catalog.read, lambda tx: properties.require(tx, name.key)
        )
        return GroupSettings(group=str(name), kind=SHARED, revision=revision(led), shared=_led(led))
    found = await call.node.host.in_thread(info.read_config, catalog, name.group)
    return GroupSettings(
        group=str(name), kind=FAMILY, revision=revision(found), reader=_kept(found)
    )


def _led(found: GroupProperties) -> LedSettings:
    of = found.settings
    return LedSettings(
        balance=of.balance.value,
        scale_for_members=found.scale_for_members,
        lag_slack_percent=of.lag_slack_percent,
        stall_timeout_ms=of.stall_timeout_ms,
        revoke_timeout_ms=of.revoke_timeout_ms,
        borrower_timeout_ms=of.borrower_timeout_ms,
        lease_ttl_ms=of.lease_ttl_ms,
        heartbeat_ms=of.heartbeat_ms,
    )


def _kept(found: GroupConfig) -> KeptSettings:
    return KeptSettings(
        retain=found.retain.value,
        checkpoint_every_s=found.checkpoint_every_ms / 1000,
        checkpoints_kept=found.checkpoints_kept_max,
        checkpoints_outstanding=found.checkpoints_outstanding_max,
    )


# --- changing them -------------------------------------------------------------------------------


async def change_settings(call: Call) -> ChangeDone:
    name, body = await _named(call), call.body
    own, others = (_OF_SHARED, _OF_READERS) if name.family == SHARED else (_OF_READERS, _OF_SHARED)
    for field in others:
        if getattr(body, field) is not None:
            kind = "reader" if name.family == SHARED else "shared"
            raise InvalidInputError(f"{name}: {field} is a setting of {kind} groups")
    given = {field: value for field in own if (value := getattr(body, field)) is not None}
    if not given and not body.dry_run:
        raise InvalidInputError(f"nothing to change: give one of {', '.join(own)}")
    if name.family == SHARED:
        told = await _change_led(call, name, given)
    else:
        told = await _change_kept(call, name, given)
    return ChangeDone(done=told or "nothing changes", dry_run=body.dry_run)


def _check(call: Call, name: FullName, now: msgspec.Struct) -> None:
    if revision(now) != call.body.revision:
        raise Problem(
            409,
            "RevisionMoved",
            f"the settings of {name} have changed since; look at them again",
        )


def _difference(before: LedSettings | KeptSettings, after: LedSettings | KeptSettings) -> str:
    """What is set anew, in words."""
    return ", ".join(
        f"{field} from {old} to {new}"
        for field in before.__struct_fields__
        if (old := getattr(before, field)) != (new := getattr(after, field))
    )


async def _change_led(call: Call, name: FullName, given: dict[str, object]) -> str:
    if "balance" in given:
        given["balance"] = Balance(str(given["balance"]))
    key, catalog = name.key, call.node.hr.log.catalog

    def work(tx: Tx) -> str:
        now = properties.require(tx, key)
        _check(call, name, now)
        after = properties.altered(now, **given)  # type: ignore[arg-type]
        if not call.body.dry_run:
            properties.configure(tx, key, **given)  # type: ignore[arg-type]
        return _difference(_led(now), _led(after))

    if call.body.dry_run:
        return await call.node.host.in_thread(catalog.read, work, snapshot=True)
    return await call.node.host.in_thread(catalog.write, work, locks=properties.declare_locks(key))


async def _change_kept(call: Call, name: FullName, given: dict[str, object]) -> str:
    def work(now: GroupConfig) -> tuple[GroupConfig, str]:
        _check(call, name, now)
        before = _kept(now)
        after = msgspec.structs.replace(before, **given)
        wanted = admin.group_config(
            retain=after.retain,
            checkpoint_every_s=after.checkpoint_every_s,
            checkpoints_kept=after.checkpoints_kept,
            checkpoints_outstanding=after.checkpoints_outstanding,
        )
        wanted = msgspec.structs.replace(wanted, lag_assumed_ms=now.lag_assumed_ms)
        return wanted, _difference(before, after)

    def commit_it(commit: GroupCommit) -> str:
        wanted, told = work(commit.state.config)
        if told:
            operations.configure(commit, wanted)
        return told

    if call.body.dry_run:
        catalog = call.node.hr.log.catalog
        return work(await call.node.host.in_thread(info.read_config, catalog, name.group))[1]
    return await hub_of(call.node.host).transact(
        ReaderGroupName(name.group), commit_it, locks=operations.CONFIGURE_LOCKS
    )


ROUTES = (
    Route(
        method="GET",
        path="/groups/{group}/settings",
        summary="The settings of a shared group or a reader group",
        handler=settings,
        answer=GroupSettings,
        cli="headrace reader info GROUP",
    ),
    change_route(
        "PATCH",
        "/groups/{group}/settings",
        "Change how a shared group is led, or what a reader group keeps",
        change_settings,
        ChangeSettings,
        cli="headrace group shared configure",
    ),
)
