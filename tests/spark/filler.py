"""Another process that fills a work queue: ``filler CATALOG STREAM GROUP [hold]``, until killed.

With ``hold`` it stops where all is staged and nothing committed, and says so.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from headrace.catalog.batches import NewBatch
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.work_queue import Round
from headrace.log.log import Log
from headrace.spark.partition import PartitionJob


class HeldJob(PartitionJob):
    """Never commits."""

    def _commit(self, log: Log, planned: Round, made: Sequence[NewBatch]) -> None:
        print("commit", flush=True)
        sys.stdin.read()


def main(catalog: str, stream: str, group: str, hold: str = "") -> None:
    kind = HeldJob if hold else PartitionJob
    job = kind(catalog, None, GroupName(stream, group), round_events_max=500)
    print("ready", flush=True)
    job.run(threading.Event())


if __name__ == "__main__":
    main(*sys.argv[1:])
