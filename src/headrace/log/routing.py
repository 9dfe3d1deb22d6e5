"""Which stream captures a subject, and which open segment takes a key.

A ``Route`` is a snapshot of a stream's open segments.  Snapshots are cached and may be stale:
the append's transaction finds out (the segment is sealed or gone) and the route is read again,
so no cache invalidation is needed.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.catalog import Catalog, Tx, forks, lane_filters, streams
from headrace.errors import InvalidEventError, NoStreamError, UnknownStreamError
from headrace.subjects import (
    FilterTrie,
    match_array,
    matches,
    overlaps,
    route_hash,
    route_hash_array,
    route_partition,
    route_partition_array,
    surely_match,
)
from headrace.subjects.columns import mask_of

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
        self.filter = lane_filters.filter_of(self.segments[0].lane) if self.segments else ""
        """What events have to pass to go to other regions, if the stream's link has a filter."""

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

    def crossing(self, subjects: pa.Array) -> npt.NDArray[np.bool_]:
        """Which events go to other regions."""
        return mask_of(match_array(self.filter, subjects))

    def hashed(self, keyed: bool) -> int | None:
        """Which single column of a plain batch is hashed: subject (1) or key (2); else None."""
        if keyed:
            return 2
        return None if self.stream.config.key_tokens else 1

    def check_subject(self, subject: str) -> None:
        """Refuse an event whose subject the stream does not capture."""
        config = self.stream.config
        if config.internal or not any(matches(each, subject) for each in config.subjects):
            self.check_subjects(pa.record_batch({"subject": pa.array([subject])}))

    def check_subjects(self, batch: pa.RecordBatch) -> None:
        """Refuse a batch with a subject that the stream does not capture."""
        if self.stream.config.internal:
            whose = "an epoch stream" if self.stream.name.endswith(".epochs") else "a group"
            raise InvalidEventError(
                f"stream {self.stream.name!r} belongs to {whose}, which alone appends to it"
            )
        subjects = batch.column("subject")
        captured: Any = None
        for pattern in self.stream.config.subjects:
            if surely_match(pattern, subjects):
                return
            found = mask_of(match_array(pattern, subjects))
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
    """Routes by stream name, and stream names by subject.

    What a stream captures never changes, and a stream made later has a greater id.  So the filters
    of all streams are read once, and after that only those of new streams; the filters of one that
    was deleted elsewhere stay until its name is asked for.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._lock = threading.Lock()
        self._routes: dict[str, Route] = {}
        self._names: dict[str, str] = {}
        self._filters: FilterTrie[tuple[str, str]] = FilterTrie()
        """(stream, filter) by filter."""
        self._known: dict[str, tuple[int, tuple[str, ...]]] = {}
        """Id and filters of the streams that are in the trie."""
        self._last_id = -1
        """The greatest id of a stream that was read; -1 before all were."""
        self._turns = catalog.turns
        forks.watch(self)

    def forked(self) -> None:
        """In a forked child: replace the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()

    def get(self, name: str) -> Route:
        if self._turns != self.catalog.turns:
            self._forget_all()
        route = self._routes.get(name)
        return route if route is not None else self.refresh(name)

    def is_known(self, name: str) -> bool:
        """Whether ``get`` answers without asking the catalog."""
        return name in self._routes and self._turns == self.catalog.turns

    def _forget_all(self) -> None:
        """The catalog's history is another one: ids may stand for something else now."""
        with self._lock:
            self._turns = self.catalog.turns
            self._routes.clear()
            self._names.clear()
            self._filters = FilterTrie()
            self._known.clear()
            self._last_id = -1

    def refresh(self, name: str) -> Route:
        """Read the route again; raises UnknownStreamError when the stream is gone."""
        self.forget(name)
        try:
            stream = self.catalog.read(lambda tx: streams.require(tx, name), snapshot=True)
        except UnknownStreamError:
            self.drop(name)
            raise
        route = Route(stream)
        with self._lock:
            self._routes[name] = route
            self._put(stream.id, name, stream.config.subjects)
        return route

    def forget(self, name: str) -> None:
        """Read the route of a stream anew when it is needed next."""
        with self._lock:
            self._routes.pop(name, None)
            self._names.clear()

    def drop(self, name: str) -> None:
        """The stream is gone, and what it captured is free."""
        self.forget(name)
        with self._lock:
            for pattern in self._known.pop(name, (0, ()))[1]:
                self._filters.remove(pattern, (name, pattern))

    def _put(self, stream_id: int, name: str, subjects: tuple[str, ...]) -> None:
        known = self._known.get(name)
        if known is not None and known[0] >= stream_id:
            return
        for pattern in known[1] if known is not None else ():
            self._filters.remove(pattern, (name, pattern))
        for pattern in subjects:
            self._filters.add(pattern, (name, pattern))
        self._known[name] = stream_id, subjects

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
        """Whether the filters of all streams were read."""
        return self._last_id >= 0

    def learn(self) -> None:
        """Read the filters of all streams that are new."""
        after = self._last_id
        found = self.catalog.read(lambda tx: streams.stored_configs(tx, after))
        with self._lock:
            for stream_id, name, data in found:
                with suppress(msgspec.MsgspecError):  # listing the streams names what is damaged
                    self._put(stream_id, name, streams.decode_config(data).subjects)
            self._last_id = max(0, self._last_id, found[-1][0] if found else 0)

    def find(self, subject: str) -> str | None:
        """The name of the stream that captures the subject, from the cache; None if unknown."""
        name = self._names.get(subject)
        if name is not None:
            return name
        found = self._filters.matching(subject)
        if not found:
            return None
        name = found[0][0]
        if len(found) > 1:
            # The newest: those before it were deleted, or their filters would overlap.
            name = max((stream for stream, _ in found), key=self._id_of)
        with self._lock:
            if len(self._names) >= SUBJECTS_CACHED_MAX:
                self._names.clear()
            self._names[subject] = name
        return name

    def _id_of(self, name: str) -> int:
        return self._known.get(name, (0, ()))[0]

    def overlapping(self, tx: Tx, wanted: str) -> Iterator[tuple[str, str]]:
        """(stream, filter) of all filters that overlap one, as the transaction sees them."""
        for _, name, data in streams.stored_configs(tx, self._last_id):
            for pattern in streams.decode_config(data).subjects:
                if overlaps(wanted, pattern):
                    yield name, pattern
        with self._lock:
            found = list(self._filters.overlapping(wanted))
        for name, pattern in found:
            if streams.id_of(tx, name) == self._id_of(name):
                yield name, pattern
