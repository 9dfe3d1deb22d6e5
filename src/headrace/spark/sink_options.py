"""The options of a Spark write, checked before use."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.errors import InvalidOptionError
from headrace.spark.connection import (
    CONNECTION_OPTIONS,
    Connection,
    connection_of,
    lower,
)
from headrace.spark.epochs.sink_options import EPOCH_OPTIONS, EpochWrite, parse_epoch_write
from headrace.spark.no_tables import NO_TABLE
from headrace.subjects import check_name

OPTIONS = (
    *CONNECTION_OPTIONS,
    "stream",
    "subject",
    "subjectColumn",
    "subjectPrefix",
    "key",
    "keyColumn",
    "deadLetterStream",
    "replay",
    "producer",
    "sequence",
    *EPOCH_OPTIONS,
)
SPARKS_OWN = ("checkpointlocation", "queryname", "path")
"""Options that Spark hands on to every sink."""
REPLAYS = ("check", "skip")


class SinkOptions(msgspec.Struct, frozen=True):
    """The options of a write, checked."""

    connection: Connection
    stream: str
    subject: str | None = None
    subject_column: str | None = None
    subject_prefix: str = ""
    key: str | None = None
    key_column: str | None = None
    dead_letter_stream: str | None = None
    skip_replays: bool = False
    producer: str | None = None
    sequence: int | None = None
    epochs: EpochWrite | None = None


def parse_options(options: Mapping[str, str]) -> SinkOptions:
    """Spark's options, whose names come in lower case; an error names what is wrong."""
    rest = lower(options, OPTIONS, hidden=SPARKS_OWN)
    stream = rest.get("stream")
    if not stream:
        raise InvalidOptionError(
            "the option stream is missing: which stream to append to"
            + ("" if options else f"? {NO_TABLE}")
        )
    for constant, column in (("subject", "subjectColumn"), ("key", "keyColumn")):
        if constant in rest and column.lower() in rest:
            raise InvalidOptionError(f"give {constant} or {column}, not both")
    replay = rest.get("replay", "check")
    if replay not in REPLAYS:
        raise InvalidOptionError(f"replay={replay!r}: use {' or '.join(REPLAYS)}")
    producer, sequence = rest.get("producer"), rest.get("sequence")
    if (producer is None) != (sequence is None):
        raise InvalidOptionError("an idempotent write needs both producer and sequence")
    if sequence is not None and not (sequence.isascii() and sequence.isdigit()):
        raise InvalidOptionError(f"sequence={sequence!r} is not a number from 0 on")
    return SinkOptions(
        connection=connection_of(rest),
        stream=check_name(stream, "stream"),
        subject=rest.get("subject"),
        subject_column=rest.get("subjectcolumn"),
        subject_prefix=rest.get("subjectprefix", ""),
        key=rest.get("key"),
        key_column=rest.get("keycolumn"),
        dead_letter_stream=rest.get("deadletterstream"),
        skip_replays=replay == "skip",
        producer=None if producer is None else check_name(producer, "producer"),
        sequence=None if sequence is None else int(sequence),
        epochs=parse_epoch_write(rest),
    )
