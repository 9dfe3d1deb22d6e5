"""An archive of Spark's Java classes, for every Spark that a test starts (class data sharing).

To start a session takes 7 s of CPU with it and 15 s without: most of that is loading and checking
the same classes each time.  It lies in the environment, where the next run finds it, and is made
beside the first tests of the first run; a Java that finds none, or one that does not fit it, does
without.  None lives long enough for Java's second compiler to pay either.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix) / f"spark-classes-{version('pyspark')}.jsa"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
WITH_ARCHIVE = f"{QUICK} -XX:SharedArchiveFile={ARCHIVE}"
VARIABLE = "SPARK_SUBMIT_OPTS"


def use() -> None:
    """Let every Spark of this process and its children start quickly."""
    os.environ.setdefault(VARIABLE, WITH_ARCHIVE)


def make() -> subprocess.Popen[bytes] | None:
    """Begin to make the archive; nothing if it is there."""
    if ARCHIVE.exists():
        return None
    draft = ARCHIVE.with_suffix(f".{os.getpid()}")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.java_classes", str(draft)],
        env=os.environ | {VARIABLE: f"{QUICK} -XX:ArchiveClassesAtExit={draft}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main(draft: Path) -> None:
    """What most sessions do, once; Java writes the archive when it ends."""
    import headrace.spark

    spark = headrace.spark.session("classes", "local[2]", **{"spark.driver.memory": "768m"})
    gateway: Any = spark.sparkContext._gateway
    spark.range(100).selectExpr("id % 7 AS k", "id").groupBy("k").count().orderBy("k").toArrow()
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    draft.rename(ARCHIVE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
