"""What a look at everything costs, and the page of metrics: 1,000 groups, 50 streams, 10,000 units.

Every unit has acked ranges, and somebody owns it where its kind has claims.  CPU time, not wall
time.  ``python -m bench.looking`` prints the figures.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.harness import Result, at_most, show
from headrace.catalog import Tx, batches, claims, leases
from headrace.catalog.batches import NewBatch
from headrace.catalog.streams import StreamConfig
from headrace.groups import names
from headrace.groups.partitioned import lifecycle
from headrace.groups.partitioned.names import GroupName
from headrace.groups.picture import Memories
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join
from headrace.groups.readers import admin as readers
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.shared.admin import Groups
from headrace.log.events import Event, batch_of, encode_blob, layout_of
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.node import looking
from headrace.node.history import History
from headrace.node.metrics import NodeFacts, rendered

GROUPS = 1_000
STREAMS = 50
UNITS = 10
"""Of each group."""
EVENTS = 1_000
"""Of each segment, in two batches."""
TTL_MS = 3_600_000
SILENT_S = 2_700
"""So much later all who own something are silent: not heard for most of their leases."""
ROUNDS = 5

T = TypeVar("T")


def fill(log: Log, groups: int = GROUPS, streams: int = STREAMS) -> None:
    """Streams, groups of every kind in turn, members and claims; nothing is acked yet."""
    for number in range(streams):
        config = StreamConfig(subjects=(f"s{number}.*",), partitions=UNITS)
        log.create_stream(f"s{number}", config)
    append(log, {f"s{number}" for number in range(streams)})
    for number in range(groups):
        _create(log, number, GroupName(f"s{number // 4 % streams}", f"g{number}"))
    queues = {stream.name for stream in log.streams(internal=True) if stream.config.internal}
    append(log, queues)


def _create(log: Log, number: int, name: GroupName) -> None:
    stream, group, members = name.stream, name.group, ["m1", "m2"]
    match number % 4:
        case 0:
            lifecycle.create_static(log, stream, group, max_members=UNITS, members=members)
        case 1:
            lifecycle.create_elastic(
                log,
                stream,
                group,
                max_members=UNITS,
                filter=f"{stream}.*",
                wildcards=[1],
                members=members,
            )
        case 2:
            Groups(log).declare(group, f"{stream}.>", start="earliest")
        case _:
            readers.create(
                log,
                group,
                given=[stream],
                start="earliest",
                end=None,
                filter=None,
                config=GroupConfig(),
            )
    if number % 4 < 2:
        log.catalog.write(lambda tx: _owned(tx, name))


def _owned(tx: Tx, group: GroupName) -> None:
    """Two members are there, and own half of the units each."""
    pins = []
    for member in ("m1", "m2"):
        pin = leases.acquire(tx, group.pin(member), f"host-{member}", TTL_MS)
        assert pin is not None
        pins.append(f"{member}.{pin.owner}.{pin.token}")
    for unit in range(UNITS):
        claims.take(tx, group.key, str(unit), pins[2 * unit // UNITS])


def append(log: Log, wanted: set[str]) -> None:
    made = batch_of([Event(subject="s.a", value=b"x" * 100, key="k")], 1)
    blob = encode_blob(made)
    ids = [
        s.id for each in log.streams(internal=True) if each.name in wanted for s in each.segments
    ]
    new = [
        NewBatch(
            segment_id=id,
            rows=EVENTS // 2,
            size_bytes=len(blob),
            max_ts_us=1,
            layout=layout_of(made.schema),
            checksum=zlib.crc32(blob),
            data=blob,
        )
        for id in ids
    ]

    def add(tx: Tx) -> None:
        for each in (*new, *new):
            batches.append(tx, [each])

    log.catalog.write(add)


def readers_of(log: Log) -> list[tuple[str, int]]:
    """(name of a reader, segment id) of every unit of every group, sources of queues included."""
    known = {stream.name: [s.id for s in stream.segments] for stream in log.streams(internal=True)}
    found = []
    for name in log.catalog.read(names.all_names):
        if name.family == names.PARTITIONED:
            group = name.partitioned
            queue = known.get(group.work_queue)
            found += [(group.key, id) for id in queue or known[group.stream]]
            found += [(group.partition_job, id) for id in known[group.stream] if queue]
        else:
            stream = f"s{int(name.group[1:]) // 4 % STREAMS}"
            found += [(name.key, id) for id in known[stream]]
    return found


def ack(log: Log, units: Sequence[tuple[str, int]], turn: int, step: int = 20) -> None:
    """Units ack on: a floor, and ranges above it, of each unit its own."""
    by_group: dict[str, dict[int, Progress]] = {}
    for number, (name, id) in enumerate(units):
        at, gap = step * turn + number % 17, 3 + number % 41
        ranges = tuple((at + (gap + 3) * n, at + (gap + 3) * n + 3) for n in range(1, 9))
        by_group.setdefault(name, {})[id] = Progress(at, ranges)

    def write(tx: Tx) -> None:
        for name, places in by_group.items():
            join(tx, name, places)

    log.catalog.write(write)


def measure(log: Log, rounds: int = ROUNDS) -> dict[str, float]:
    """Milliseconds of CPU: of looks after all or few have acked, and of two pages of metrics."""
    units = readers_of(log)
    found: dict[str, list[float]] = {}

    def spent(what: str, work: Callable[[], T]) -> T:
        gc.collect()
        begun_s = time.process_time()
        done = work()
        found.setdefault(what, []).append(1_000 * (time.process_time() - begun_s))
        return done

    memories = Memories()
    look = looking.look(log.catalog, None, memories).look
    history = History()
    facts = NodeFacts(version="1", look_age_s=0, away=False, listeners=0, per_unit=False)
    for turn in range(1, rounds + 1):
        for what, some in (("all", units), ("few", units[::100])):
            ack(log, some, 2 * turn + (what == "few"))
            seen = partial(looking.look, log.catalog, look, memories)
            look = spent(what, seen).look
        history.add(look)
        spent("metrics", partial(rendered, look, history, Counter(), facts))
    log.catalog.drive(lambda: int((time.time() + SILENT_S) * 1e6))
    for turn in range(rounds + 1, 2 * rounds + 1):
        if turn == rounds + 1:  # all that changed with the time
            look = looking.look(log.catalog, look, memories).look
        ack(log, units[::100], 2 * turn)
        look = spent("few, silent", partial(looking.look, log.catalog, look, memories)).look
    return {what: statistics.median(values) for what, values in found.items()}


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        log = open_log(Path(name) / "data")
        fill(log)
        took = measure(log)
        log.catalog.close()
    what = f"{GROUPS:,} groups"
    return [
        at_most(f"look at {what}, all have acked", took["all"], 200, "ms CPU"),
        at_most(f"look at {what}, 1 % have acked", took["few"] / took["all"], 0.5, "x of all"),
        at_most(f"look at {what}, silent, 1 %", took["few, silent"] / took["all"], 0.5, "x of all"),
        at_most(f"metrics of {what}", took["metrics"], 100, "ms CPU"),
    ]


if __name__ == "__main__":
    show(run())
