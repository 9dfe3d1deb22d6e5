"""Work queues that a node fills by itself, where no pipeline leads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.work_queue import SegmentRead
from headrace.log.log import Log
from headrace.node.filling import Fillers
from headrace.spark import partition_task
from tests.support import until

GROUPS = ("billing", "shipping")


def test_a_stream_is_read_once_for_all_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = partition_task._events

    def counted(work: Any, share: SegmentRead, log: Log) -> Any:
        read.append(share.end - share.start)
        return real(work, share, log)

    monkeypatch.setattr(partition_task, "_events", counted)

    async def main() -> None:
        async with headrace.open(tmp_path) as hr:
            await fill(hr)

    async def fill(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", subjects=["orders.>"])
        for group in GROUPS:
            await hr.groups.create_elastic(
                "orders", group, max_members=2, filter="orders.*", wildcards=[1]
            )
        hr.log.append(
            "orders", pa.table({"subject": [f"orders.{n}" for n in range(10)], "value": [b""] * 10})
        )
        Fillers(hr.host, {"catalog": str(tmp_path)})

        def queued() -> bool:
            queues = [hr.log.stream(GroupName("orders", group).work_queue) for group in GROUPS]
            return all(sum(each.head for each in queue.segments) == 10 for queue in queues)

        await until(queued, "both queues to be filled", 30)

    asyncio.run(main())
    assert sum(read) == 10
