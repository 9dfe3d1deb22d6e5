"""Small rounds of the partition job, by the node's own process, while no pipeline leads.

A round counts once, whoever carries it out: its commit checks that the places in the source are
still where the plan found them.  So nothing has to be agreed with a pipeline that starts meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from headrace.catalog.notifier import ANY
from headrace.errors import HeadraceError
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.filling import PIPELINE
from headrace.groups.partitioned.runtime.units import GroupKind
from headrace.host import Host, Stage

EVERY_S = 1.0
SOONEST_S = 0.05

_log = logging.getLogger(__name__)


class Fillers:
    """Keeps work queues filled until somebody else does."""

    def __init__(self, host: Host, place: Mapping[str, str]) -> None:
        self._host = host
        self._place = place
        self._news = asyncio.Event()
        self._closing = False
        self._stop: Callable[[], None] = lambda: None
        self._tasks = host.tasks("filling")
        self._tasks.spawn(self._run())
        host.serve(Stage.CHORES, self)

    async def close(self) -> None:
        self._closing = True
        self._stop()
        await self._tasks.close()

    async def _run(self) -> None:
        self._stop = await self._host.listen(ANY, self._news.set)
        while True:
            self._news.clear()
            try:
                await self._host.in_thread(self._fill)
            except HeadraceError as error:
                _log.warning("work queues were not filled: %s", error)
            await self._host.sleep(SOONEST_S)
            await self._host.wait(self._news, EVERY_S)

    def _fill(self) -> None:
        """A round for each elastic group with something to do; those of a stream read it once."""
        catalog = self._host.log.catalog
        if catalog.leases.get(PIPELINE) is not None:
            return
        groups = catalog.read(lambda tx: admin.names(tx, GroupKind.ELASTIC))
        if not groups:
            return
        from headrace.spark.connection import connection_of
        from headrace.spark.partition import PartitionJob

        place = connection_of(dict(self._place))
        jobs = [
            PartitionJob(
                place.catalog,
                place.store,
                group,
                store_options=dict(place.store_options),
                round_events_max=20_000,
            )
            for group in groups
        ]
        with ExitStack() as at_work:
            for job in jobs:
                at_work.enter_context(job.joined())
            for job in jobs:
                if self._closing:
                    return
                job.step()
