"""Whether appends and point reads cost the same in a segment with a million batches.

``python -m bench.growth`` prints the figures.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import zlib
from pathlib import Path

from bench.harness import Result, at_most, show
from headrace.catalog import Tx, batches
from headrace.catalog.batches import NewBatch
from headrace.catalog.streams import StreamConfig
from headrace.log.events import Event, batch_of, encode_blob, layout_of
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.log.query import Query

SMALL = 1_000
LARGE = 1_000_000
STEP = 1_000
SAMPLES = 400
ROUNDS = 5


def grow(log: Log, count: int, step: int = STEP) -> None:
    """Batches of one event each, many to a transaction: only the number of rows matters here."""
    event = batch_of([Event(subject="bench.a", value=b"x" * 100, key="k")], 1)
    blob = encode_blob(event)
    segment = log.stream("bench").segments[0]
    new = NewBatch(
        segment_id=segment.id,
        rows=1,
        size_bytes=len(blob),
        max_ts_us=1,
        layout=layout_of(event.schema),
        checksum=zlib.crc32(blob),
        data=blob,
    )

    def add(tx: Tx) -> None:
        for _ in range(step):
            batches.append(tx, [new])

    for _ in range((count - segment.head) // step):
        log.catalog.write(add)


def _append_us(log: Log) -> float:
    event = Event(subject="bench.a", value=b"x" * 100, key="k")
    times = []
    for _ in range(SAMPLES):
        started = time.perf_counter()
        log.append("bench", event)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def _point_read_us(log: Log) -> float:
    chance = random.Random(1)
    head = log.stream("bench").segments[0].head
    times = []
    for _ in range(SAMPLES):
        offset = chance.randrange(head)
        started = time.perf_counter()
        reader = log.reader("bench", Query(start={0: offset}, limit=1))
        batch = reader.next()
        times.append(time.perf_counter() - started)
        assert batch is not None
        assert batch.column("offset")[0].as_py() == offset
    return statistics.median(times) * 1e6


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        logs = {}
        for count in (SMALL, LARGE):
            log = open_log(Path(name) / str(count))
            log.create_stream("bench", StreamConfig(subjects=("bench.>",)))
            grow(log, count)
            logs[count] = log
        found = []
        for what, measure in (("append", _append_us), ("point read", _point_read_us)):
            rounds = [(measure(logs[SMALL]), measure(logs[LARGE])) for _ in range(ROUNDS)]
            small = statistics.median(first for first, _ in rounds)
            large = statistics.median(second for _, second in rounds)
            ratio = statistics.median(second / first for first, second in rounds)
            found.append(
                at_most(
                    f"{what}, 1 M batches against 1 thousand",
                    ratio,
                    1.5,
                    "x",
                    f"{large:.0f} against {small:.0f} us",
                )
            )
        for log in logs.values():
            log.catalog.close()
        return found


if __name__ == "__main__":
    show(run())
