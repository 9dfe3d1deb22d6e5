"""What follows from the config of a partitioned group alone, for those who look at it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.catalog.leases import Ended
from headrace.groups.names import FullName
from headrace.groups.partitioned.core.config import ElasticGroupConfig, GroupConfig
from headrace.groups.partitioned.filling import job_key
from headrace.groups.partitioned.layout import kind_of
from headrace.groups.partitioned.names import ELASTIC_BUCKET, PINS, STATIC_BUCKET, GroupName
from headrace.groups.partitioned.stored import elastic_config, static_config
from headrace.groups.picture import Picture


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the config of a group alone."""

    text: str
    group: GroupName
    config: GroupConfig
    kind: str
    given: Mapping[int, str]
    """Who shall have each partition."""
    queue: str
    """The work queue of an elastic group; empty of a static one."""
    job: str
    readers: tuple[str, ...]


def plan_of(name: FullName, picture: Picture) -> GroupPlan:
    """The plan of a group in a picture."""
    key, entries = f"{name.scope}.{name.group}", picture.entries
    stored = entries[STATIC_BUCKET].get(key), entries[ELASTIC_BUCKET].get(key)
    return picture.memory.made(("plan", name), stored, lambda _: _made(name, entries))


def _made(name: FullName, entries: Mapping[str, Mapping[str, bytes]]) -> GroupPlan:
    group = name.partitioned
    config = config_of(group, entries)
    members = config.assignment()
    elastic = isinstance(config, ElasticGroupConfig)
    shares = (group.share(each) for each in members)
    return GroupPlan(
        text=str(name),
        group=group,
        config=config,
        kind=kind_of(config).value,
        given={p: member for member, owned in members.items() for p in owned},
        queue=group.work_queue if elastic else "",
        job=job_key(group),
        readers=(group.key, *([group.partition_job] if elastic else shares)),
    )


def pins_of(picture: Picture, plan: GroupPlan) -> Mapping[str, Ended]:
    """The pins of a group by member, also of members that are none any more, held or ended."""
    by_group = picture.memory.each("pins", picture.leases, _pins_by_group)
    return by_group.get(plan.group.key, {})


def _pins_by_group(leases: Mapping[str, Ended]) -> dict[str, dict[str, Ended]]:
    found: dict[str, dict[str, Ended]] = {}
    for name, lease in leases.items():
        if name.startswith(PINS):
            group, _, member = name[len(PINS) :].rpartition(".")
            found.setdefault(group, {})[member] = lease
    return found


def config_of(group: GroupName, entries: Mapping[str, Mapping[str, bytes]]) -> GroupConfig:
    """The config of a group that is there."""
    static = entries[STATIC_BUCKET].get(group.key)
    if static is not None:
        return static_config(group, static)
    return elastic_config(group, entries[ELASTIC_BUCKET][group.key])
