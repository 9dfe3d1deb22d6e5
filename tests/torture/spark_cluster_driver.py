"""A driver of a query that reads for a group, with executors in processes of their own.

``spark_cluster_driver FOLDER CATALOG CHECKPOINT SINK POINT``; ``SINK`` is ``headrace``, or a folder
for Parquet files.  It runs until it is killed, or until its query ends with an error that does not
ask to start it again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace.spark
from tests.support import ROOT
from tests.torture.spark_driver import GROUP, READER
from tests.torture.struck_source import StruckSource

MASTER = "local-cluster[1,2,1024]"
AGAIN = ("connect back", "start the query again")
"""What ends a query that goes on when it is started again, in the same driver."""


def session(folder: Path) -> SparkSession:
    made = headrace.spark.session(
        "ordeal",
        MASTER,
        **{
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "spark.sql.shuffle.partitions": 2,
            "spark.local.dir": str(folder / "local"),
            "spark.ui.enabled": False,
        },
    )
    made.dataSource.register(StruckSource)
    return made


def start(
    spark: SparkSession, folder: Path, catalog: str, checkpoint: str, sink: str, point: str
) -> StreamingQuery:
    own = {"catalog": catalog, "mark": str(folder / "mark"), "point": point}
    source = spark.readStream.format("struck").options(**own, group=GROUP, reader=READER)
    rows: DataFrame = source.option("maxOffsetsPerTrigger", 200).load()
    shown = rows.selectExpr("concat('clean.', key) AS subject", "key", "value")
    if sink == "headrace":
        to = shown.writeStream.format("struck").options(**own, stream="clean")
    else:
        to = shown.writeStream.format("parquet").option("path", sink)
    return to.option("checkpointLocation", checkpoint).start()


def main(folder: Path, catalog: str, checkpoint: str, sink: str, point: str) -> None:
    spark = session(folder)
    print("began", flush=True)
    while True:
        query = start(spark, folder, catalog, checkpoint, sink, point)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            said = " ".join(str(error).split())
            print("ended", said[-600:], flush=True)
            if not any(words in said for words in AGAIN):
                os._exit(3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:6])
