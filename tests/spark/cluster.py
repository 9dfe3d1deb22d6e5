"""A streaming query on a cluster of processes, one of which is killed; run by a test.

``python -m tests.spark.cluster CATALOG FOLDER``: reads stream ``s`` into Parquet files,
and in the first batch kills the executor that reads.  Prints what the test wants to know.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import headrace.spark


def killing(flag: str) -> object:
    """A step between source and sink that kills its executor, once and in mid-batch."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import signal

        import psutil  # type: ignore[import-untyped]

        for number, batch in enumerate(batches):
            yield batch
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            for parent in psutil.Process().parents():
                if any("CoarseGrainedExecutorBackend" in word for word in parent.cmdline()):
                    print(number, file=sys.stderr)
                    os.kill(parent.pid, signal.SIGKILL)
                    return

    return step


def main(catalog: str, folder: str) -> None:
    spark = headrace.spark.session(
        "cluster",
        "local-cluster[2,1,1024]",
        **{
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": 2,
            "spark.task.maxFailures": 8,
        },
    )
    headrace.spark.check_executors(spark)
    flag = f"{folder}/killed"
    frame = (
        spark.readStream.format("headrace")
        .option("catalog", catalog)
        .option("subscribe", "s")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "4000")
        .load()
    )
    query = (
        frame.mapInArrow(killing(flag), frame.schema)  # type: ignore[arg-type]
        .writeStream.format("parquet")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.read.parquet(f"{folder}/out")
    print("rows", found.count())
    print("distinct", found.select("segment", "offset").distinct().count())
    print("killed", Path(flag).exists())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
