"""Native reads: one DataFrame over a stream that scans its files with Spark's own reader.

Files hold no offsets: an event's offset is its batch's start plus its row.  Spark knows the row
(``_metadata.row_index``) and the file's name and size.  Looking up a file's start by its name would
be a search by text for every row, and costs a third of the scan's speed.  So the size is the key of
a perfect hash: files are put in groups, each with a modulus under which all of its sizes differ,
and an array holds the start at ``size % modulus``.

Everything else comes through ``format("headrace")``: events inside the catalog, files of which
only a part is wanted, and files with markers in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog import Tx, batches
from headrace.catalog.batches import FilePlace
from headrace.errors import InvalidOptionError
from headrace.log.events import BITS
from headrace.log.log import Log
from headrace.log.origins import is_linked
from headrace.spark.checked import loaded
from headrace.spark.columns import SEGMENT_NAMES, STREAM_NAMES, check_schema, default_schema
from headrace.spark.connection import STORE_OPTION, check_shared
from headrace.spark.options import SourceOptions, parse_options
from headrace.spark.planner import Planner
from headrace.spark.planning import Span
from headrace.spark.session import is_connect, master_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

GROUP_FILES_MAX = 256
MODULUS_MAX = 1 << 18
HADOOP_SCHEMES = {"s3": "s3a", "gs": "gs", "abfs": "abfs", "abfss": "abfss", "az": "abfss"}
PATTERN = re.compile(r"[\[\]{}*?\\]")

Where = str | datetime | Mapping[int, int]


class NativeFile(msgspec.Struct, frozen=True):
    """A file of one segment that is read whole."""

    segment: int
    place: FilePlace


class Parts(msgspec.Struct, frozen=True):
    """What is scanned by Spark, and the spans that come through the source."""

    files: list[NativeFile]
    spans: list[Span]


def read(
    spark: SparkSession,
    stream: str,
    *,
    catalog: str | Path | None = None,
    store: str | Path | None = None,
    store_options: Mapping[str, str] | None = None,
    start: Where = "earliest",
    end: Where = "latest",
    subject: str | None = None,
    headers: bool = False,
    schema: StructType | None = None,
) -> DataFrame:
    """A stream's events up to now (or ``end``), with the columns of ``format("headrace")``.

    The DataFrame stands for the events that there are when this is called, however often it is
    used; use it within the time for which replaced files are kept (five minutes).
    """
    if "," in stream:
        raise InvalidOptionError(f"{stream!r}: a native read is of one stream")
    given = {"subscribe": stream, "catalog": catalog, "store": store, "subject": subject}
    given |= {STORE_OPTION + name: value for name, value in (store_options or {}).items()}
    given |= _spot(stream, start, "starting") | _spot(stream, end, "ending")
    options = parse_options({k: str(v) for k, v in given.items() if v is not None})
    shape = default_schema(headers=headers) if schema is None else schema
    check_schema(shape)
    log = options.connection.log()
    check_shared(log, master_of(spark))
    root = _root(spark, log)
    # Where an event comes from is in no file: those of a linked stream are read by the source.
    with_origins = "origin" in shape.names and is_linked(log, stream)
    parts = plan(log, options, stream, native=root is not None and not with_origins)
    frames = [
        _scan(spark, root or "", stream, group, shape, options.subject)
        for group in group_files(parts.files)
    ]
    if parts.spans or not frames:
        frames.append(_through_source(spark, options, stream, parts.spans, shape))
    return reduce(lambda one, other: one.unionAll(other), frames)


def plan(log: Log, options: SourceOptions, stream: str, *, native: bool = True) -> Parts:
    """Which files can be scanned as they are, and the spans of all the rest."""
    planner = Planner(log, options)
    begin, until = planner.start("earliest"), planner.end()
    runs = planner.whole_runs(stream, begin.at(stream), until.at(stream))
    ids = planner.segment_ids([stream])
    bounds: dict[int, tuple[int, int]] = {}
    for run in runs:
        low, high = bounds.get(run.segment, (run.start, run.end))
        bounds[run.segment] = (min(low, run.start), max(high, run.end))

    def look(tx: Tx) -> Parts:
        files: list[NativeFile] = []
        spans: list[Span] = []
        for segment, (low, high) in sorted(bounds.items()):
            at = low
            for place in batches.files_between(tx, ids[stream, segment], low, high):
                if not native or place.layout & BITS["marker"]:
                    continue
                if at < place.start:
                    spans.append(Span(stream, segment, at, place.start))
                files.append(NativeFile(segment, place))
                at = place.end
            if at < high:
                spans.append(Span(stream, segment, at, high))
        return Parts(files, spans)

    return log.catalog.read(look, snapshot=True)


class Group(msgspec.Struct, frozen=True):
    """Files for which ``size % modulus`` is unique."""

    files: list[NativeFile]
    modulus: int


def group_files(files: Iterable[NativeFile]) -> list[Group]:
    """Put all files into as few groups as simple means find."""
    waiting = list(files)
    groups = []
    while waiting:
        taken: dict[int, NativeFile] = {}
        rest = []
        for file in waiting:
            size = file.place.size_bytes
            if size in taken or len(taken) == GROUP_FILES_MAX:
                rest.append(file)
            else:
                taken[size] = file
        modulus = len(taken)
        while len({size % modulus for size in taken}) < len(taken):
            modulus += 1
            if modulus > MODULUS_MAX:
                # Hardly ever happens: leave one file for another group, and try again.
                rest.append(taken.popitem()[1])
                modulus = len(taken)
        groups.append(Group(list(taken.values()), modulus))
        waiting = rest
    return groups


def _scan(
    spark: SparkSession,
    root: str,
    stream: str,
    group: Group,
    schema: StructType,
    subject: str | None,
) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructField, StructType

    from headrace.spark.columns import TYPES

    placed = ("offset", *STREAM_NAMES, *SEGMENT_NAMES)
    wanted = [field.name for field in schema.fields if field.name not in placed]
    if subject is not None and "subject" not in wanted:
        wanted.append("subject")
    stored = StructType([StructField(name, TYPES[name]) for name in wanted])
    frame = spark.read.schema(stored).parquet(
        *(f"{root}/{file.place.path}" for file in group.files)
    )
    starts, segments = [0] * group.modulus, [0] * group.modulus
    for file in group.files:
        at = file.place.size_bytes % group.modulus
        starts[at], segments[at] = file.place.start, file.segment
    at_column = f.pmod(f.col("_metadata.file_size"), f.lit(group.modulus)).cast("int")

    def column(name: str) -> Column:
        # An array from JSON is folded to a constant when the query is planned.
        if name == "offset":
            start = f.get(f.from_json(f.lit(json.dumps(starts)), "array<bigint>"), at_column)
            return start + f.col("_metadata.row_index")
        if name in SEGMENT_NAMES:
            return f.get(f.from_json(f.lit(json.dumps(segments)), "array<int>"), at_column)
        return f.lit(stream) if name in STREAM_NAMES else f.col(name)

    if subject is not None:
        frame = frame.where(subject_condition(subject))
    return frame.select(*(column(field.name).alias(field.name) for field in schema.fields))


def subject_condition(pattern: str) -> Column:
    """A subject filter as a condition that Spark's own reader can use."""
    from pyspark.sql import functions as f

    tokens = pattern.split(".")
    subject = f.col("subject")
    if "*" not in tokens and ">" not in tokens:
        return subject == pattern
    if "*" not in tokens:
        return subject.startswith(pattern[:-1])
    parts = [{"*": "[^.]+", ">": ".+"}.get(token, f"\\Q{token}\\E") for token in tokens]
    return subject.rlike("^(?s:" + "\\.".join(parts) + ")$")


def _through_source(
    spark: SparkSession,
    options: SourceOptions,
    stream: str,
    spans: Sequence[Span],
    schema: StructType,
) -> DataFrame:
    listed: dict[str, list[tuple[int, int]]] = {}
    for span in spans:
        listed.setdefault(str(span.segment), []).append((span.start, span.end))
    given = options.connection.options | {"subscribe": stream}
    if options.subject is not None:
        given["subject"] = options.subject
    given["spans"] = json.dumps({stream: listed})
    return loaded(spark, spark.read.format("headrace").schema(schema).options(**given))


def _root(spark: SparkSession, log: Log) -> str | None:
    """The store's address for Spark, or None when Spark cannot reach it by itself."""
    if is_connect(spark):
        # Its server may be on another machine, and does not say what it can reach.
        return None
    if log.store is None or PATTERN.search(log.store.url):
        # Spark would expand glob characters in a folder's name.
        return None
    scheme, found, rest = log.store.url.partition("://")
    if not found:
        return f"file://{log.store.url}"
    hadoop = HADOOP_SCHEMES.get(scheme)
    jvm = spark.sparkContext._jvm
    if hadoop is None or jvm is None:
        return None
    try:
        settings = spark.sparkContext._jsc.hadoopConfiguration()
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(hadoop, settings)
    except Exception:
        # Spark has no client for this kind of storage; the source brings its own.
        return None
    return f"{hadoop}://{rest.rstrip('/')}"


def _spot(stream: str, spot: Where, which: str) -> dict[str, str]:
    match spot:
        case datetime():
            moment = spot if spot.tzinfo is not None else spot.replace(tzinfo=UTC)
            return {f"{which}timestamp": moment.isoformat()}
        case str():
            return {f"{which}offsets": spot}
        case Mapping():
            return {f"{which}offsets": json.dumps({stream: {str(k): v for k, v in spot.items()}})}
    raise InvalidOptionError(
        f"{spot!r} is not a place: give 'earliest', 'latest', a datetime or {{segment: offset}}"
    )
