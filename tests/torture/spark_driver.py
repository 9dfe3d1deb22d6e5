"""A driver of a query that reads for a group, as Spark runs it but without a JVM.

Source, read tasks, sink and checkpoint directory are the real ones' code and order of calls: plan,
log, open, bind and read, stage, commit of the sink, commit log.  At one point of one batch it kills
or stops itself, as it is told.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from headrace.errors import BatchFenced, QueryReplacedError
from headrace.spark import group_source
from headrace.spark.group_source import GroupStreamReader
from headrace.spark.sink import Sink, StreamWriter, make_sink
from headrace.spark.source import HeadraceSource
from headrace.spark.task import QueryTask

POINTS = ("planned", "logged", "open", "bound", "staged", "counted", "finished", "idle")
GROUP, READER = "report", "spark-1"
FENCED = 4
"""The exit status of a driver that lost what it read."""


class Directory:
    """A checkpoint directory: one file per batch in each of two logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        known = folder / "query"
        if not known.exists():
            known.write_text(str(uuid.uuid4()))
        self.query = known.read_text()

    def last(self, log: str) -> int:
        return max((int(p.name) for p in (self.folder / log).iterdir()), default=-1)

    def offset(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "offsets" / str(number)).read_text())
        return found

    def put(self, log: str, number: int, data: object) -> None:
        """Add an entry; another driver that has added it ends this one, as Spark does."""
        draft = self.folder / f"draft-{uuid.uuid4().hex}"
        draft.write_text(json.dumps(data))
        try:
            os.link(draft, self.folder / log / str(number))
        except FileExistsError:
            end("multiple streaming jobs")
        finally:
            draft.unlink()


def end(why: str) -> NoReturn:
    print("ended", why, flush=True)
    os._exit(3)


class Driver:
    """One run of the query."""

    def __init__(self, catalog: str, folder: Path, point: str, fault: str) -> None:
        self.directory = Directory(folder)
        self.run = str(uuid.uuid4())
        self.point, self.fault = point, fault
        source = HeadraceSource({"catalog": catalog, "group": GROUP, "reader": READER})
        self.schema = source.schema()
        reader = source.streamReader(self.schema)
        assert isinstance(reader, GroupStreamReader)
        self.reader = reader
        schema = StructType().add("subject", "string").add("key", "string").add("value", "binary")
        given = {"catalog": catalog, "stream": "clean"}
        self.sink: Sink = make_sink(given, schema, False, "local[1]")

    def at(self, point: str) -> None:
        if point != self.point:
            return
        self.point = ""
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        print("frozen", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

    def work(self) -> None:
        directory = self.directory
        print("began", flush=True)
        while True:
            number = directory.last("offsets")
            finished = directory.last("commits")
            start = directory.offset(finished) if finished >= 0 else self.reader.initialOffset()
            if number <= finished:
                number, final = finished + 1, self.reader.latestOffset(start, ReadAllAvailable())
                if final == start:
                    self.at("idle")
                    time.sleep(0.02)
                    continue
                self.at("planned")
                directory.put("offsets", number, final)
            self.at("logged")
            self.batch(start, directory.offset(number), number)
            directory.put("commits", number, {})
            self.at("finished")

    def batch(self, start: dict[str, Any], final: dict[str, Any], number: int) -> None:
        parts = self.reader.partitions(start, final)
        self.at("open")
        task = QueryTask(self.directory.query, number, self.run)
        setattr(group_source, "task_of", lambda: task)  # noqa: B010
        found = [self.stage(part) for part in parts]
        self.at("staged")
        StreamWriter(self.sink).commit(
            [dataclasses.replace(each, query=task.query, run=task.run) for each in found], number
        )
        self.at("counted")

    def stage(self, part: InputPartition) -> Any:
        rows = []
        for batch in self.reader.read(part):
            self.at("bound")
            subjects = [f"clean.{subject.split('.')[1]}" for subject in _texts(batch, "subject")]
            rows.append(
                pa.record_batch(
                    {
                        "subject": pa.array(subjects, pa.string()),
                        "key": batch.column("key"),
                        "value": batch.column("value"),
                    }
                )
            )
        return self.sink.stage(iter(rows))


def _texts(batch: pa.RecordBatch, name: str) -> list[str]:
    found: list[str] = batch.column(name).to_pylist()
    return found


if __name__ == "__main__":
    os.environ[group_source.LEASE_VARIABLE] = sys.argv[5]
    try:
        Driver(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]).work()
    except (BatchFenced, QueryReplacedError) as error:
        # As a query of Spark ends that was too slow for its lease, and is to be started again.
        print("fenced", error, flush=True)
        os._exit(FENCED)
