"""Whether anybody fills the work queue of an elastic group.

The queue is filled by the partition job of the pipeline, which is another program.  Where none
runs, members wait for ever and nothing is wrong with any of them: so the group says it.  What is
known of the pipeline is its lease and what its supervisor wrote down about the group's job.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.catalog import Tx, entries, leases, markers, streams
from headrace.catalog.records import Records
from headrace.errors import HeadraceError
from headrace.groups import homes
from headrace.groups.lag import is_exact
from headrace.groups.partitioned.filling import PIPELINE as PIPELINE
from headrace.groups.partitioned.filling import UP
from headrace.groups.partitioned.filling import Filling as Filling
from headrace.groups.partitioned.filling import JobNote as JobNote
from headrace.groups.partitioned.filling import job_key as job_key
from headrace.groups.partitioned.names import ELASTIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime.units import retained
from headrace.groups.partitioned.stored import elastic_config
from headrace.groups.progress.store import load_all

if TYPE_CHECKING:
    from headrace.host import Host

LOOK_S = 4.0
LOOK_S_MAX = 60.0

_log = logging.getLogger(__name__)


_notes = Records(JobNote, "the state of job")


def look(tx: Tx, name: GroupName) -> Filling | None:
    """How it stands; None if there is no such elastic group, or no stream."""
    config = entries.get(tx, ELASTIC_BUCKET, name.key)
    source = streams.get(tx, name.stream)
    if config is None or config.value is None or source is None:
        return None
    read, consumed = load_all(tx, name.partition_job), load_all(tx, name.consumed)
    floors = [
        max(retained(found.get(segment.id), segment).floor for found in (read, consumed))
        for segment in source.segments
    ]
    entry = entries.get(tx, PIPELINE, job_key(name))
    return Filling(
        name=name,
        floors=tuple(floors),
        behind=sum(
            markers.events_in(tx, segment, [(floor, segment.head)])
            for segment, floor in zip(source.segments, floors, strict=True)
        ),
        led=leases.get(tx, PIPELINE) is not None,
        up=leases.get(tx, UP) is not None,
        job=_notes.decode_or(job_key(name), entry.value, None) if entry is not None else None,
        exact=is_exact([elastic_config(name, config.value).filter], source),
        waits=homes.waiting(tx, [name.key]).get(name.key, ""),
    )


async def warn_if_nobody_fills(host: Host, name: GroupName) -> None:
    """Look now and then while the group is consumed here; say once that nothing will come.

    A queue that moves is filled by somebody, pipeline or not.
    """
    pause_s = LOOK_S
    before: Filling | None = None
    while True:
        try:
            found = await host.in_thread(
                host.log.catalog.read, lambda tx: look(tx, name), snapshot=True
            )
        except HeadraceError as error:
            _log.debug("group %s: %s", name.key, error)
        else:
            if found is None:
                return
            waited = before is not None and before.floors == found.floors and before.finding
            if waited and found.finding:
                _log.warning("%s", found.finding)
                return
            before = found
        await host.sleep(pause_s)
        pause_s = min(pause_s * 1.5, LOOK_S_MAX)
