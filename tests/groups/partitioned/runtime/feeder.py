"""Fills the work queue of an elastic group in this process, as the Spark job does in its own."""

from __future__ import annotations

from headrace.catalog import Tx
from headrace.errors import RoundOvertakenError
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.work_queue import (
    Round,
    commit_round,
    partitioned,
    plan_round,
    round_locks,
)
from headrace.log.append import Outcome, Write
from headrace.log.log import Log
from headrace.log.query import Query


def plan(log: Log, name: GroupName, events_max: int = 10_000) -> Round:
    return log.catalog.read(lambda tx: plan_round(tx, name, events_max=events_max), snapshot=True)


def gather(log: Log, planned: Round) -> Write:
    """Read what a round reads and make its rows."""
    write = log.write_of()
    for read in planned.reads:
        query = Query(
            start={read.segment: read.start},
            until={read.segment: read.end},
            segments=[read.segment],
        )
        for batch in log.read(planned.name.stream, query):
            for partition, rows in partitioned(batch, planned.config).items():
                write.add(planned.name.work_queue, rows, segment=partition, captured=True)
    write.prepare()
    return write


def commit(log: Log, planned: Round, write: Write) -> Outcome:
    def run(tx: Tx) -> Outcome:
        return commit_round(tx, planned, write.run)

    return log.catalog.write(run, locks=[*round_locks(planned), *write.locks])


def fill(log: Log, name: GroupName, events_max: int = 10_000) -> int:
    """Run rounds until there is no news or no room; returns how many events were appended."""
    count = 0
    while (planned := plan(log, name, events_max)).reads:
        write = gather(log, planned)
        try:
            outcome = commit(log, planned, write)
        except RoundOvertakenError:
            write.discard()
            continue
        count += sum(placed.count for placed in outcome.placed)
    return count
