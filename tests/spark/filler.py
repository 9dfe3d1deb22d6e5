"""Another process that fills a work queue: ``filler CATALOG STREAM GROUP``, until it is killed.

It says when it is ready, and before each commit.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from headrace.catalog.batches import NewBatch
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.work_queue import Round
from headrace.log.log import Log
from headrace.spark.partition import PartitionJob


class TellingJob(PartitionJob):
    """Says that all is staged and nothing committed."""

    def _commit(self, log: Log, planned: Round, made: Sequence[NewBatch]) -> None:
        print("commit", flush=True)
        super()._commit(log, planned, made)


def main(catalog: str, stream: str, group: str) -> None:
    job = TellingJob(catalog, None, GroupName(stream, group), round_events_max=500)
    print("ready", flush=True)
    job.run(threading.Event())


if __name__ == "__main__":
    main(*sys.argv[1:])
