"""Which stream captures a subject, and which open segment takes a key.

A ``Route`` is a snapshot of a stream's open segments.  Snapshots are cached and may be stale:
the append's transaction finds out (the segment is sealed or gone) and the route is read again,
so no cache invalidation is needed.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.catalog import Catalog, forks, streams
from headrace.errors import InvalidEventError, NoStreamError
from headrace.subjects import (
    match_array,
    matches,
    route_hash,
    route_hash_array,
    route_partition,
    route_partition_array,
    surely_match,
)

SUBJECTS_CACHED_MAX = 10_000
LIMITS_COMPARED_MAX = 16


class Route:
    """A stream's open segments, ordered by key range."""

    def __init__(self, stream: streams.Stream) -> None:
        self.stream = stream
        self.segments = stream.open_segments
        self._bounds = [segment.range_lo for segment in self.segments]
        self._limits = np.array(self._bounds[1:], dtype=np.uint32)
        self.limits = self._limits.tobytes()
        self.partitions = stream.config.partitions
        self.prefix = _prefix(stream.config)

    def segment_of(self, key: str | None, subject: str) -> int:
        """Index of the open segment for one event."""
        if len(self.segments) == 1:
            return 0
        config = self.stream.config
        if config.partitions:
            return route_partition(key, subject, config.key_tokens, config.partitions)
        found = route_hash(key, subject, config.key_tokens)
        return bisect_right(self._bounds, found) - 1

    def segments_of(self, batch: pa.RecordBatch) -> npt.NDArray[np.integer]:
        """Index of the open segment for each row."""
        keys = batch.column("key") if "key" in batch.schema.names else None
        subjects, config = batch.column("subject"), self.stream.config
        if config.partitions:
            return route_partition_array(keys, subjects, config.key_tokens, config.partitions)
        hashes = route_hash_array(keys, subjects, config.key_tokens)
        if len(self._limits) > LIMITS_COMPARED_MAX:
            return self._limits.searchsorted(hashes, side="right")
        # For few segments, comparing with every bound beats a binary search, which mispredicts.
        places = np.zeros(len(hashes), np.uint8)
        for limit in self._limits:
            places += hashes >= limit
        return places

    def hashed(self, keyed: bool) -> int | None:
        """Which single column of a plain batch is hashed: subject (1) or key (2); else None."""
        if keyed:
            return 2
        return None if self.stream.config.key_tokens else 1

    def check_subjects(self, batch: pa.RecordBatch) -> None:
        """Refuse a batch with a subject that the stream does not capture."""
        if self.stream.config.internal:
            raise InvalidEventError(
                f"stream {self.stream.name!r} belongs to a group; only the group appends to it"
            )
        subjects = batch.column("subject")
        captured: Any = None
        for pattern in self.stream.config.subjects:
            if surely_match(pattern, subjects):
                return
            found = np.asarray(match_array(pattern, subjects))
            captured = found if captured is None else captured | found
            if captured.all():
                return
        row = int(np.argmin(captured))
        raise InvalidEventError(
            f"row {row}: stream {self.stream.name!r} captures "
            f"{', '.join(self.stream.config.subjects)}, not {subjects[row].as_py()!r}",
            row=row,
        )


def _prefix(config: streams.StreamConfig) -> bytes | None:
    """The prefix that alone decides whether the stream captures a subject, if there is one."""
    if config.internal or len(config.subjects) != 1:
        return None
    (pattern,) = config.subjects
    plain = pattern.endswith(".>") and "*" not in pattern
    return pattern[:-1].encode() if plain else None


class Routes:
    """Routes by stream name, and stream names by subject."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._routes: dict[str, Route] = {}
        self._names: dict[str, str] = {}
        self._filters: list[tuple[str, str]] = []
        forks.watch(self)

    def forked(self) -> None:
        """In a forked child: replace the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()

    def get(self, name: str) -> Route:
        route = self._routes.get(name)
        return route if route is not None else self.refresh(name)

    def is_known(self, name: str) -> bool:
        """Whether ``get`` answers without asking the catalog."""
        return name in self._routes

    def refresh(self, name: str) -> Route:
        """Read the route again; raises UnknownStreamError when the stream is gone."""
        self.forget(name)
        stream = self._catalog.read(lambda tx: streams.require(tx, name), snapshot=True)
        route = Route(stream)
        with self._lock:
            self._routes[name] = route
        return route

    def forget(self, name: str) -> None:
        with self._lock:
            self._routes.pop(name, None)
            self._names.clear()
            self._filters = []

    def stream_for(self, subject: str) -> str:
        """The name of the stream that captures the subject."""
        name = self.find(subject)
        if name is None:
            self.learn()
            name = self.find(subject)
        if name is None:
            raise NoStreamError(
                f"no stream captures {subject!r}; create one whose subjects match it"
            )
        return name

    @property
    def learned(self) -> bool:
        """Whether the filters of all streams were read, and none is known to have changed."""
        return bool(self._filters)

    def learn(self) -> None:
        """Read the filters of all streams."""
        filters = [
            (stream, pattern)
            for stream, config in self._catalog.read(streams.configs)
            for pattern in config.subjects
        ]
        with self._lock:
            self._filters = filters

    def find(self, subject: str) -> str | None:
        """The name of the stream that captures the subject, from the cache; None if unknown."""
        name = self._names.get(subject)
        if name is not None:
            return name
        for stream, pattern in self._filters:
            if matches(pattern, subject):
                with self._lock:
                    if len(self._names) >= SUBJECTS_CACHED_MAX:
                        self._names.clear()
                    self._names[subject] = stream
                return stream
        return None
