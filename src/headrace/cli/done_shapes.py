"""The JSON of what commands did: published, deleted, checked, moved."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.cli.checks import Check


class Deleted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that is gone."""

    deleted: str
    """Its name."""
    dead_letters: int | None = None
    """How many went with it, of what can have any."""


class PublishedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Where an event was put."""

    stream: str
    segment: int
    offset: int


class PublishedEvents(msgspec.Struct, frozen=True, kw_only=True):
    """How many events were published."""

    published_events: int
    streams: Mapping[str, int]
    """How many to each."""


class CompactionPolicyShape(msgspec.Struct, frozen=True, kw_only=True):
    """When a stream is compacted."""

    target_bytes: int
    """The size to aim at."""
    min_batches: int
    """Fewer than this are not worth a file."""
    min_age_s: int
    """Younger ones are left alone."""
    span_s: int
    """All events of one file were appended within this time."""


class CompactionSet(msgspec.Struct, frozen=True, kw_only=True):
    """By which policy a stream is compacted from now on."""

    stream: str
    policy: CompactionPolicyShape | None
    """Null: no longer."""


class CompactedStream(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction did, or would do."""

    stream: str
    dry_run: bool
    files: int
    batches: int
    compacted_events: int
    bytes_before: int
    bytes_after: int
    lost: int
    """Runs that somebody else compacted or trimmed first."""
    damaged: tuple[str, ...]
    """What is wrong with batches that had to be left as they are."""


class SweptFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files that nothing names, which were removed or would be."""

    dry_run: bool
    files: int
    """How many were looked at."""
    orphans: int
    orphan_bytes: int
    buried: int
    """Files of trimmed events."""


class CatalogVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A catalog that is up to date."""

    catalog: str
    version: int


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """A record whose key was damaged."""

    records: str
    key: str
    name: str | None
    """What it is called again; null: it was removed."""


class Doctor(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked."""

    ok: bool
    checks: tuple[Check, ...]


class NodeLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that lets a browser in, once."""

    link: str


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """A node that serves."""

    address: str
    link: str


class EverythingUp(Serving, frozen=True, kw_only=True):
    """A node that serves, and its pipeline."""

    spark: bool
    """Whether there is a Spark for it."""


# --- reader groups -----------------------------------------------------------------------------


class CreatedReaderGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A new reader group."""

    group: str
    streams: tuple[str, ...]
    start: str


class OfflineReader(msgspec.Struct, frozen=True, kw_only=True):
    """A reader that is offline."""

    group: str
    reader: str
    was_online: bool


class ReaderStreams(msgspec.Struct, frozen=True, kw_only=True):
    """Streams that a reader group reads as well, or no longer."""

    group: str
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class TakenCut(msgspec.Struct, frozen=True, kw_only=True):
    """Where all readers of a group are."""

    group: str
    positions: Mapping[str, int]
    text: str
    """For ``reader reset --cut``, and for programs."""


class TakenCheckpoint(TakenCut, frozen=True, kw_only=True):
    """A checkpoint that was taken."""

    checkpoint: str


class CancelledCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was given up."""

    group: str
    cancelled: str


class ResetGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Where a reader group begins again, or would."""

    group: str
    dry_run: bool
    positions: Mapping[str, int]
    readers: tuple[str, ...]
    """Those that are online."""


class BenchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of ``headrace bench``; what does not apply is null."""

    what: str
    events_per_s: float | None = None
    bytes_per_s: float | None = None
    """Of the values of events."""
    p50_ms: float | None = None
    """Half of all take at most as long."""
    p99_ms: float | None = None
