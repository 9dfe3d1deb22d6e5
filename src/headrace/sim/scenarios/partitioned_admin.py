"""The administrator of a partitioned group in a simulated world.

It changes members and mappings, changes its mind, asks for step-downs, and deletes the group and
creates it again.  It keeps the history of the membership, to judge the instances by.
"""

from __future__ import annotations

from headrace.groups.partitioned.core.changes import (
    add_members,
    check_change,
    delete_mappings,
    drop_members,
    set_mappings,
)
from headrace.groups.partitioned.core.config import (
    Distribution,
    ElasticGroupConfig,
    GroupConfig,
    MemberMapping,
    StaticGroupConfig,
    checked_elastic,
    decode_elastic,
    decode_static,
    encode,
    make_elastic,
    make_static,
)
from headrace.groups.partitioned.core.messages import ConfigSeen
from headrace.sim.scenarios.partitioned_member import CONFIGS, GROUP
from headrace.sim.store import Snapshot
from headrace.sim.world import World

STATIC_PROBABILITY = 0.15


class Administrator:
    """Makes the config and keeps changing it until told to stop."""

    def __init__(self, world: World, partitions: int, names: list[str]) -> None:
        self.world = world
        self.partitions = partitions
        self.names = names
        self.active = True
        self.revision = 0
        self.membership: list[tuple[int, frozenset[str]]] = []
        """Who was a member at which revision."""
        self._put(self._first_config())

    def _first_config(self) -> GroupConfig:
        rng = self.world.rng
        members = rng.sample(self.names, rng.randint(1, len(self.names)))
        distribution = rng.choice(list(Distribution))
        if rng.random() < STATIC_PROBABILITY:
            return make_static(max_members=self.partitions, members=members)
        return make_elastic(
            max_members=self.partitions,
            filter="orders.*",
            partitioning_wildcards=[1],
            members=members,
            distribution=distribution,
        )

    @property
    def config(self) -> GroupConfig | None:
        """The config as it is stored now; None while the group is deleted."""
        entry = self.world.store.entries.get((CONFIGS, GROUP.key))
        return None if entry is None else entry.value

    @property
    def automatic(self) -> ElasticGroupConfig | None:
        """The config, if its members may be added and dropped now."""
        config = self.config
        if isinstance(config, ElasticGroupConfig) and not config.member_mappings:
            return config
        return None

    def seen(self) -> ConfigSeen:
        """What a watch shows now."""
        return ConfigSeen(self.revision, self.config)

    # --- changing ---

    def add(self) -> None:
        """A member comes."""
        name = self.world.rng.choice(self.names)
        if (config := self.automatic) is not None:
            self._change(config, add_members(config, [name]))

    def drop(self) -> None:
        """A member goes."""
        name = self.world.rng.choice(self.names)
        if (config := self.automatic) is not None:
            self._change(config, drop_members(config, [name]))

    def change_mind(self) -> None:
        """A change that is taken back while it is being carried out."""
        rng = self.world.rng
        name, back_ms = rng.choice(self.names), rng.randint(50, 900)
        config = self.automatic
        if config is None:
            return
        there = name in config.members
        change, undo = (drop_members, add_members) if there else (add_members, drop_members)
        self._change(config, change(config, [name]))

        def take_back() -> None:
            if self.active and (config := self.automatic) is not None:
                self._change(config, undo(config, [name]))

        self.world.call_in(back_ms, take_back)

    def map(self) -> None:
        """Partitions are given out by hand."""
        owners = [self.world.rng.choice(self.names) for _ in range(self.partitions)]
        mappings = [
            MemberMapping(name, tuple(p for p, owner in enumerate(owners) if owner == name))
            for name in self.names
            if name in owners
        ]
        config = self.config
        if isinstance(config, ElasticGroupConfig):
            self._change(config, set_mappings(config, mappings))

    def unmap(self) -> None:
        """Back to members."""
        config = self.config
        if isinstance(config, ElasticGroupConfig) and config.member_mappings:
            self._change(config, delete_mappings(config))

    def recreate(self) -> None:
        """The group is deleted and, after a while, created again; its events stay."""
        rng = self.world.rng
        gone_ms, watched = rng.randint(1, 1500), rng.random() < 0.8
        if self.config is None:
            return
        self.world.reach("group.deleted")
        self.world.note("admin", "deletes the group")
        self.world.store.run(self._delete)
        self.revision = self.world.store.revision
        self.membership.append((self.revision, frozenset()))
        if watched:
            self.world.call_in(gone_ms, self.create)
        else:  # so soon that a watch shows only the new config
            self.create()

    def create(self) -> None:
        """Create the group if it does not exist."""
        if self.config is None:
            self._put(self._first_config())

    def stop(self) -> None:
        """The last act: a group that exists and has members."""
        self.active = False
        self.create()
        config = self.automatic
        if config is not None and not config.members:
            self._change(config, add_members(config, self.names))

    # --- storing ---

    def _put(self, config: GroupConfig) -> None:
        record = encode(config)
        static = isinstance(config, StaticGroupConfig)
        stored = decode_static(record) if static else decode_elastic(record)
        self.world.require(stored == config, "configs survive their record", str(config))
        self.world.store.run(lambda tx: tx.put(CONFIGS, GROUP.key, stored))
        self.revision = self.world.store.revision
        self.membership.append((self.revision, frozenset(stored.assignment())))
        self.world.note("admin", "assigns %s", stored.assignment())

    @staticmethod
    def _delete(tx: Snapshot) -> None:
        tx.delete(CONFIGS, GROUP.key)
        tx.put("deletions", GROUP.key, True)  # a deletion is a revision too

    def _change(self, before: ElasticGroupConfig, after: ElasticGroupConfig) -> None:
        check_change(before, checked_elastic(after))
        owned = sorted(p for each in after.assignment().values() for p in each)
        if after.members or after.member_mappings:
            self.world.require(
                owned == list(range(self.partitions)),
                "every partition is assigned once",
                str(after.assignment()),
            )
        self._put(after)
