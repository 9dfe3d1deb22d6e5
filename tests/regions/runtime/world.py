"""Regions on real catalogs, for tests: made, linked, filled and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.catalog import Tx, lanes, streams
from headrace.catalog.streams import StreamConfig
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.regions.linking import link, name_region
from headrace.regions.runtime.agent import RegionAgent
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.replicator import Replicator

ORDERS = StreamConfig(subjects=("orders.>",))


class Place:
    """One region of a test."""

    def __init__(self, name: str, url: str, store: Path | None = None) -> None:
        self.name, self.url, self.store = name, url, store
        self.log: Log = open_log(url, store)
        self.neighbours = Neighbours()
        name_region(self.log, name)

    def publish(self, count: int, *, stream: str = "orders", value: bytes | None = None) -> None:
        given = [
            Event(
                subject=f"{stream}.{at % 7}",
                key=str(at % 7),
                value=value or f"{self.name}-{at}".encode(),
            )
            for at in range(count)
        ]
        self.log.append(stream, given)

    def pull(self, *sources: str) -> int:
        """Copy all there is from other regions; how many rounds it took."""
        count = 0
        for source in sources:
            replicator = Replicator(self.log, self.neighbours, source)
            while replicator.step():
                count += 1
        return count

    def origins(self, stream: str = "orders") -> dict[int, list[tuple[str, int, bytes]]]:
        """(lane, sequence, value) of all events, by segment, in the order of the log."""
        found: dict[int, list[tuple[str, int, bytes]]] = {
            s.number: [] for s in self.log.stream(stream).segments
        }
        for batch in self.log.read(stream):
            for row in batch.to_pylist():
                origin = row["origin"]
                found[row["segment"]].append((origin["region"], origin["sequence"], row["value"]))
        return found

    def lane_ends(self, stream: str = "orders") -> dict[int, dict[str, int]]:
        def look(tx: Tx) -> dict[int, dict[str, int]]:
            return {s.number: lanes.ends(tx, s.id) for s in streams.require(tx, stream).segments}

        return self.log.catalog.read(look, snapshot=True)

    def close(self) -> None:
        self.neighbours.close()
        self.log.catalog.close()


class Stepped(Place):
    """A region whose agent is stepped by hand."""

    def __init__(self, name: str, url: str, store: Path | None = None) -> None:
        super().__init__(name, url, store)
        self.agent = RegionAgent(self.log, self.neighbours)


def settle(*sides: Stepped) -> None:
    """Copy everything and let every agent say and hear all there is."""
    for _ in range(4):
        for side in sides:
            side.pull(*(other.name for other in sides if other is not side))
            while side.agent.step():
                pass


@contextmanager
def making(folder: Path) -> Iterator[Callable[[str], Place]]:
    """Makes regions, each on a SQLite catalog of its own; they are closed in the end."""
    made: list[Place] = []

    def region(name: str) -> Place:
        made.append(Place(name, str(folder / name)))
        return made[-1]

    yield region
    for each in made:
        each.close()


def linked(
    regions: Iterable[Place],
    stream: str = "orders",
    *,
    segments: int = 2,
    config: StreamConfig = ORDERS,
    writers: str = "all",
    backfill: str = "all",
) -> None:
    """Make a stream in the first region, and link it to all of them."""
    first, *others = regions
    first.log.create_stream(stream, config, segments)
    for other in others:
        link(
            first.log,
            stream,
            other.name,
            here=first.url,
            catalog=other.url,
            store=other.store,
            writers=writers,
            backfill=backfill,
        )


def assert_same(regions: Iterable[Place], stream: str = "orders") -> None:
    """Every lane is dense and holds the same events in the same order, in every region."""
    seen: list[dict[tuple[int, str], list[tuple[int, bytes]]]] = []
    for region in regions:
        by_lane: dict[tuple[int, str], list[tuple[int, bytes]]] = {}
        for number, rows in region.origins(stream).items():
            for lane, sequence, value in rows:
                by_lane.setdefault((number, lane), []).append((sequence, value))
        for place, held in by_lane.items():
            assert [sequence for sequence, _ in held] == list(range(len(held))), place
        seen.append(by_lane)
    assert all(each == seen[0] for each in seen[1:])


def graph(region: Place, stream: str = "orders") -> list[tuple[object, ...]]:
    """The segments of a stream: numbers, ranges, which have ended, and which follow which."""
    return [
        (s.number, s.range_lo, s.range_hi, s.sealed, s.predecessors, s.successors)
        for s in region.log.stream(stream).segments
    ]
