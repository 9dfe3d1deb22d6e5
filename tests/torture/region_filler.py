"""A program of the torture of regions: it fills the work queue, as a pipeline without Spark."""

from __future__ import annotations

import sys
import threading

from headrace.errors import HeadraceError
from headrace.groups.partitioned.names import GroupName
from headrace.spark.partition import PartitionJob
from tests.torture.region_worker import GROUP

PAUSE_S = 0.1


def fill(catalog: str) -> None:
    """Until it is killed; where the group is not at home, or not yet there, it waits."""
    stop = threading.Event()
    while True:
        try:
            PartitionJob(catalog, None, GroupName("orders", GROUP)).run(stop)
        except HeadraceError as error:
            print(error, file=sys.stderr)
        stop.wait(PAUSE_S)


if __name__ == "__main__":
    fill(sys.argv[1])
