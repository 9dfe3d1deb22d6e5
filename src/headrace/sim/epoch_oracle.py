"""The oracle of epochs: knows every batch ever published and checks what subscribers are given.

It compares times with its own few lines, never with those of the cores.

A *chain* is what one consumer sees from a fresh start on, through every resumption: the first
subscription and all that went on from its tokens.  For a chain it is checked that

* an epoch that had begun somewhere at a fresh start, or lost data to a skip, gives nothing more;
* every other epoch that is complete was given whole, once, and nothing is given after that;
* the frontier never goes back, and never passes what the partitions can still publish;
* nothing before the start or after `until` is given;
* the end is called closed only when every partition is complete.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.epochs import End, Frontier, Mode, Time
from headrace.sim.world import World

Item = tuple[str, int]
"""A batch: its partition and its number there."""


def at_or_before(first: Time, second: Time) -> bool:
    """The product order, spelled out."""
    if isinstance(first, int) and isinstance(second, int):
        return first <= second
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    return all(a <= b for a, b in zip(first, second, strict=True))


def covered_from_below(frontier: Iterable[Time], time: Time) -> bool:
    """Whether a time is at or after one of a frontier."""
    return any(at_or_before(held, time) for held in frontier)


def covered_from_above(frontier: Iterable[Time], time: Time) -> bool:
    """Whether a time is at or before one of a frontier."""
    return any(at_or_before(time, held) for held in frontier)


class EpochOracle:
    """Everything that was published, and how far every partition is."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.published: dict[Time, set[Item]] = {}
        self.lowers: dict[str, Frontier] = {}
        self._remembered: dict[str, set[Time]] = {}
        """Per partition, times that its upper frontier must cover; the rest lie before them."""

    def publishes(self, item: Item, time: Time) -> None:
        """A publisher has taken a batch."""
        partition = item[0]
        if not covered_from_below(self.lowers[partition], time):
            self.world.fail(
                "completed epochs get no more data",
                f"{partition} publishes at {time} with lower frontier {self.lowers[partition]}",
            )
        self.published.setdefault(time, set()).add(item)
        self._remembered.setdefault(partition, set()).add(time)

    def takes_back(self, partition: str, held: Frontier) -> None:
        """What a publisher put into epochs at or after `held` does not count."""
        for time, items in self.published.items():
            if covered_from_below(held, time):
                items -= {item for item in items if item[0] == partition}

    def advances(self, partition: str, lower: Frontier) -> None:
        """The lower frontier of a partition is now `lower`."""
        before = self.lowers.get(partition)
        if before == lower:
            return
        if before is not None and not all(covered_from_below(before, time) for time in lower):
            self.world.fail("frontiers never go back", f"{partition}: {before} to {lower}")
        self.lowers[partition] = lower

    def remembers(self, partition: str, upper: Frontier) -> None:
        """The upper frontier that a publisher shows covers everything published by it."""
        remembered = self._remembered.setdefault(partition, set())
        missing = [time for time in remembered if not covered_from_above(upper, time)]
        if missing:
            what = f"{partition}: {upper} misses {missing}"
            self.world.fail("an upper frontier never shrinks", what)
        self._remembered[partition] = set(upper)

    def open(self, time: Time) -> bool:
        """Whether a partition may still publish at a time."""
        return any(covered_from_below(lower, time) for lower in self.lowers.values())

    def over_somewhere(self, time: Time) -> bool:
        """Whether a partition that published at a time has completed it."""
        sources = {partition for partition, _ in self.published[time]}
        return any(not covered_from_below(self.lowers[name], time) for name in sources)

    @property
    def closed(self) -> bool:
        """Whether every partition is complete."""
        return not any(self.lowers.values())


class Chain:
    """What one consumer sees from a fresh start on."""

    def __init__(self, oracle: EpochOracle, who: str, mode: Mode, until: Frontier) -> None:
        self._oracle = oracle
        self._world = oracle.world
        self.who = who
        self.mode = mode
        self.until = until
        self.frontier: Frontier | None = None
        self._excluded: list[Time] = []
        self._given_up: set[Time] = set()
        self._late: list[tuple[Frontier, Frontier]] = []
        self._got: dict[Time, set[Item]] = {}
        self._judged: set[Time] = set()
        self.whole = 0
        """How many epochs were given whole."""

    def _require(self, holds: bool, invariant: str, detail: str) -> None:
        if not holds:
            self._fail(invariant, detail)

    def _fail(self, invariant: str, detail: str) -> None:
        self._world.fail(invariant, f"{self.who} ({self.mode}): {detail}")

    def begins(self, lower: Frontier, upper: Frontier) -> None:
        """All snapshots of a fresh subscription are there."""
        strange = [time for time in upper if time not in self._oracle.published]
        self._require(not strange, "a filter holds only what has begun", f"{strange}")
        self._exclude(upper)
        self.advances(lower)

    def joins(self, at: Frontier, upper: Frontier) -> None:
        """A new partition that began `at` a frontier has told what had begun there."""
        self._late.append((at, upper))

    def skips(self, upper: Frontier) -> None:
        """Data at or before `upper` was left out, and the consumer told."""
        self._exclude(upper)

    def taken_back(self, partition: str, held: Frontier) -> None:
        """The consumer is told that rows of a partition do not count."""
        for time, got in self._got.items():
            if covered_from_below(held, time):
                self._require(
                    time not in self._judged, "what is complete is not taken back", f"{time}"
                )
                got -= {item for item in got if item[0] == partition}

    def gives_up(self, time: Time) -> None:
        """One epoch did not fit, and the consumer was told."""
        self._given_up.add(time)

    def resumes(self) -> None:
        """A new subscription goes on from the frontier: what was incomplete comes again.

        All of it: what had begun at the first start, or was skipped, is to be whole now.
        """
        self._excluded.clear()
        self._given_up.clear()
        self._late.clear()
        for time in [time for time in self._got if time not in self._judged]:
            del self._got[time]

    def _exclude(self, upper: Frontier) -> None:
        self._excluded.extend(upper)

    def _is_excluded(self, time: Time) -> bool:
        return (
            time in self._given_up
            or covered_from_above(self._excluded, time)
            or any(
                covered_from_below(at, time) and covered_from_above(upper, time)
                for at, upper in self._late
            )
        )

    def given(self, time: Time, item: Item) -> None:
        """A batch is handed to the consumer (mode ``whole``: as part of its epoch)."""
        if self.frontier is None or not covered_from_below(self.frontier, time):
            what = f"{item} at {time}, frontier {self.frontier}"
            self._fail("completed epochs get no more data", what)
        if self.mode is not Mode.UNFILTERED and self._is_excluded(time):
            what = f"{item} of {time}, which had begun or was skipped"
            self._fail("an epoch is seen whole or not at all", what)
        if covered_from_below(self.until, time):
            self._fail("nothing after the end", f"{item} at {time}")
        got = self._got.setdefault(time, set())
        if item in got:
            self._fail("nothing comes twice", f"{item} at {time}")
        got.add(item)

    def dropped(self, time: Time) -> None:
        """A batch was filtered."""
        if self.mode is Mode.UNFILTERED or not self._is_excluded(time):
            what = f"a batch at {time}, begun or skipped: {self._excluded}"
            self._fail("only what cannot be whole is filtered", what)

    def advances(self, frontier: Frontier) -> None:
        """The consumer is told a new frontier."""
        if self.frontier is not None:
            back = [time for time in frontier if not covered_from_below(self.frontier, time)]
            if back:
                self._fail("frontiers never go back", f"{self.frontier} to {frontier}")
        self.frontier = frontier
        for lower in self._oracle.lowers.values():
            ahead = [time for time in lower if not covered_from_below(frontier, time)]
            if ahead:
                what = f"{frontier} but {ahead}"
                self._fail("a frontier is never ahead of a partition", what)
        for time, items in self._oracle.published.items():
            if time not in self._judged and not covered_from_below(frontier, time):
                self._judge(time, items)

    def _judge(self, time: Time, items: set[Item]) -> None:
        self._judged.add(time)
        if self._is_excluded(time) or covered_from_below(self.until, time):
            return
        got = self._got.get(time, set())
        if got != items:
            what = f"{time} lacks {sorted(items - got)} and has {sorted(got - items)} too many"
            self._fail("a complete epoch is whole", what)
        self.whole += 1

    def ends(self, end: End) -> None:
        """The subscription says how it ended."""
        if end is End.CLOSED:
            self._require(
                self._oracle.closed, "closed means complete", f"partitions: {self._oracle.lowers}"
            )
        if end is End.REACHED:
            early = [t for t in self.frontier or () if not covered_from_below(self.until, t)]
            self._require(not early, "reached means all before it is complete", f"{early}")
