"""What an administrator does meanwhile, and what the catalog says at the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.catalog import Tx, streams
from headrace.catalog.streams import StreamConfig
from headrace.errors import NoActiveInstanceError
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.core.config import ElasticGroupConfig
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.queued import unconsumed
from headrace.groups.partitioned.runtime.work_queue import plan_round
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.log.query import Query
from tests.torture.groups.journal import OUTPUT, STREAM, Event, event_of

STATIC, ELASTIC = "static", "elastic"
MAX_BUFFERED = 2_000


class Admin:
    """A static and an elastic group on one stream, seen from outside."""

    def __init__(self, url: str, store: Path, partitions: int) -> None:
        self._log = open_log(url, store)
        self._partitions = partitions

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._log.catalog.close()

    def create(self, static_members: Sequence[str], elastic_members: Sequence[str]) -> None:
        log = self._log
        source = StreamConfig(subjects=(f"{STREAM}.>",), partitions=self._partitions)
        log.create_stream(STREAM, source)
        log.create_stream(OUTPUT, StreamConfig(subjects=(f"{OUTPUT}.>",)), 2)
        admin.create_static(
            log, STREAM, STATIC, max_members=self._partitions, members=static_members
        )
        admin.create_elastic(
            log,
            STREAM,
            ELASTIC,
            max_members=self._partitions,
            filter=f"{STREAM}.*.*",
            wildcards=[2],
            max_buffered=MAX_BUFFERED,
            members=elastic_members,
            distribution="sticky",
        )

    # -- changes ------------------------------------------------------------------------

    def change(self, what: str, rng: random.Random, names: Sequence[str]) -> bool:
        """Change something; false when there was nothing to change."""
        match what:
            case "members":
                self._change_members(rng, names)
            case "mapping":
                self._change_mapping(rng, names)
            case "step down static" | "step down elastic":
                group = what.rsplit(" ", 1)[1]
                info = admin.get(self._log, STREAM, group)
                try:
                    member = rng.choice(list(info.config.assignment()))
                    admin.step_down(self._log, STREAM, group, member)
                except NoActiveInstanceError:
                    return False
            case _:
                raise ValueError(what)
        return True

    def _elastic(self) -> ElasticGroupConfig:
        config = admin.get(self._log, STREAM, ELASTIC).config
        assert isinstance(config, ElasticGroupConfig)
        return config

    def _change_members(self, rng: random.Random, names: Sequence[str]) -> None:
        config = self._elastic()
        if config.member_mappings:
            admin.delete_mappings(self._log, STREAM, ELASTIC, rng.sample(names, 2))
            return
        absent = [name for name in names if name not in config.members]
        if absent and (len(config.members) < 2 or rng.random() < 0.5):
            admin.add_members(self._log, STREAM, ELASTIC, [rng.choice(absent)])
        else:
            admin.drop_members(self._log, STREAM, ELASTIC, [rng.choice(config.members)])

    def _change_mapping(self, rng: random.Random, names: Sequence[str]) -> None:
        chosen = rng.sample(names, rng.randint(1, len(names)))
        mapping: dict[str, list[int]] = {name: [] for name in chosen}
        for partition in range(self._partitions):
            mapping[rng.choice(chosen)].append(partition)
        wanted = {name: owned for name, owned in mapping.items() if owned}
        admin.set_mappings(self._log, STREAM, ELASTIC, wanted)

    def settle(self, names: Sequence[str]) -> None:
        """The members of the elastic group from now on, evenly."""
        config = self._elastic()
        if config.member_mappings:
            admin.delete_mappings(self._log, STREAM, ELASTIC, names)
            return
        admin.add_members(self._log, STREAM, ELASTIC, names)
        dropped = [name for name in config.members if name not in names]
        if dropped:
            admin.drop_members(self._log, STREAM, ELASTIC, dropped)

    # -- the end ------------------------------------------------------------------------

    def unacked(self) -> dict[str, int]:
        """How many events each group has left; nothing when all is done."""
        return unacked(self._log)

    def explain(self) -> str:
        """Who consumes what, for a finding."""
        return "; ".join(
            f"{group}: {admin.status(self._log, STREAM, group)}" for group in (STATIC, ELASTIC)
        )

    def outputs(self, group: str) -> Counter[Event]:
        """What was published in transactions with acks."""
        query = Query(subject=f"{OUTPUT}.{group}.*")
        return Counter(
            event_of(value.as_py())
            for batch in self._log.read(OUTPUT, query)
            for value in batch.column("value")
        )


def unacked(log: Log) -> dict[str, int]:
    """How many events each group has left; groups that have none are left out."""

    def look(tx: Tx) -> dict[str, int]:
        source = streams.require(tx, STREAM)
        static, elastic = GroupName(STREAM, STATIC), GroupName(STREAM, ELASTIC)
        queue = streams.require(tx, elastic.work_queue)
        return {
            STATIC: unconsumed(tx, static, source),
            ELASTIC: unconsumed(tx, elastic, queue) + plan_round(tx, elastic).behind,
        }

    found = log.catalog.read(look, snapshot=True)
    return {group: count for group, count in found.items() if count}
