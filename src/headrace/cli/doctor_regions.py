"""What ``headrace doctor`` looks at where a catalog is one of several regions."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.cli.checks import Check
from headrace.cli.failures import without_passwords
from headrace.log.log import Log


def check_regions(log: Log) -> Iterator[Check]:
    """This region, and what stands between it and the others; nothing if it is none."""
    from headrace.regions.health import examine
    from headrace.regions.runtime.neighbours import Neighbours
    from headrace.spark.records import LEASE

    neighbours = Neighbours()
    try:
        pipeline = log.catalog.leases.get(LEASE) is not None
        for each in examine(log, neighbours, pipeline=pipeline):
            found = without_passwords(" ".join(each.found.split()))
            yield Check(each.name, each.state, found, each.mend)
    finally:
        neighbours.close()
