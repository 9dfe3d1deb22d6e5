"""Publishers and subscribers together, against a plain model that keeps every time it saw."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.epochs import (
    Data,
    Deliver,
    Dropped,
    End,
    Epoch,
    Mode,
    Publisher,
    Ready,
    Snapshot,
    Subscriber,
    Time,
    TimeShape,
)
from headrace.epochs.core.times import TIME_MAX
from headrace.errors import EpochError
from tests.epochs.core.support import SHAPES, leq, maximal, minimal, times

Item = tuple[Time, str]


@dataclass
class ModelPartition:
    """All held times, and all times ever published."""

    held: list[Time]
    seen: list[Time] = field(default_factory=list)


@dataclass
class ModelSubscriber:
    """Copies of what its partitions showed when it connected, and all that came since."""

    connected: dict[str, tuple[list[Time], list[Time]]] = field(default_factory=dict)
    log: list[tuple[str, Item]] = field(default_factory=list)

    def begun(self, time: Time) -> bool:
        return any(leq(time, u) for _, upper in self.connected.values() for u in upper)


class World:
    """The cores and the model, driven by the same events."""

    def __init__(self, shape: TimeShape, partitions: int, mode: Mode) -> None:
        self.shape = shape
        self.mode = mode
        self.publishers = {f"p{n}": Publisher(shape) for n in range(partitions)}
        self.partitions = {name: ModelPartition([shape.bottom]) for name in self.publishers}
        self.subscribers: dict[str, Subscriber] = {}
        self.models: dict[str, ModelSubscriber] = {}
        self.delivered: dict[str, list[Item]] = {}
        self.dropped: dict[str, list[Item]] = {}
        self.whole: dict[str, list[Time]] = {}
        self.count = 0

    def data(self, name: str, time: Time) -> None:
        legal = any(leq(low, time) for low in self.partitions[name].held)
        item = (time, f"{name}.{self.count}")
        try:
            self.publishers[name].data(time, item)
        except EpochError:
            assert not legal
            return
        assert legal
        self.count += 1
        self.partitions[name].seen.append(time)
        for model in self.models.values():
            if name in model.connected:
                model.log.append((name, item))
        self.pump()

    def progress(self, name: str, old: Time, new: Time | None) -> None:
        partition = self.partitions[name]
        legal = new is None or any(leq(low, new) for low in partition.held)
        update = [(old, -1)] + ([(new, 1)] if new is not None else [])
        try:
            self.publishers[name].progress(update)
        except EpochError:
            assert not legal
            return
        assert legal
        partition.held.remove(old)
        if new is not None:
            partition.held.append(new)
        self.pump()

    def connect(self, who: str, name: str) -> None:
        model = self.models.setdefault(who, ModelSubscriber())
        if name in model.connected:
            return
        if who not in self.subscribers:
            self.subscribers[who] = Subscriber(self.publishers, self.shape, mode=self.mode)
            self.delivered[who], self.dropped[who], self.whole[who] = [], [], []
        partition = self.partitions[name]
        model.connected[name] = (list(partition.held), list(partition.seen))
        self.publishers[name].connect(who)
        self.pump()

    def pump(self) -> None:
        for who, subscriber in self.subscribers.items():
            for name in self.models[who].connected:
                for message in self.publishers[name].take(who):
                    for effect in subscriber.receive(name, message):
                        self.see(who, effect)

    def see(self, who: str, effect: object) -> None:
        model = self.models[who]
        match effect:
            case Ready(lower=lower, upper=upper):
                held = [t for low, _ in model.connected.values() for t in minimal(low)]
                assert set(lower) == minimal(held)
                assert set(upper) == maximal(t for _, up in model.connected.values() for t in up)
            case Deliver(data=data):
                self.delivered[who].append(data.payload)
            case Dropped(data=data):
                self.dropped[who].append(data.payload)
            case Epoch(time=time, batches=batches):
                self.whole[who].append(time)
                self.delivered[who].extend(batch.data.payload for batch in batches)

    def compare(self) -> None:
        for who, model in self.models.items():
            subscriber = self.subscribers[who]
            if len(model.connected) < len(self.publishers):
                assert not subscriber.ready
                assert not self.delivered[who]
                continue
            held = [time for partition in self.partitions.values() for time in partition.held]
            assert set(subscriber.frontier) == minimal(held)
            begun = [t for _, upper in model.connected.values() for t in upper]
            alive = [f for f in maximal(begun) if any(leq(low, f) for low in held)]
            assert set(subscriber.filter) == set(alive)
            assert (subscriber.end is End.CLOSED) == (not held)
            self.compare_items(who, model, held)

    def compare_items(self, who: str, model: ModelSubscriber, held: list[Time]) -> None:
        items = [item for _, item in model.log]
        filtered = [item for item in items if model.begun(item[0])]
        passed = [item for item in items if not model.begun(item[0])]
        if self.mode is Mode.UNFILTERED:
            filtered, passed = [], items
        assert self.dropped[who] == filtered
        if self.mode is not Mode.WHOLE:
            assert self.delivered[who] == passed
            return
        complete = [item for item in passed if not any(leq(low, item[0]) for low in held)]
        assert sorted(self.delivered[who]) == sorted(complete)
        order = self.whole[who]
        assert len(set(order)) == len(order)
        for place, time in enumerate(order):
            assert not any(leq(later, time) for later in order[place + 1 :])


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_subscribers_are_given_what_the_model_says(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    world = World(shape, data.draw(st.integers(1, 3)), data.draw(st.sampled_from(Mode)))
    names = st.sampled_from(list(world.publishers))
    for _ in range(data.draw(st.integers(1, 25))):
        name = data.draw(names)
        held = world.partitions[name].held
        match data.draw(st.integers(0, 7)):
            case 0 | 1:
                world.connect(data.draw(st.sampled_from(["s", "t"])), name)
            case 2 | 3 if held:
                new = data.draw(st.one_of(st.none(), times(shape)))
                world.progress(name, data.draw(st.sampled_from(held)), new)
            case _:
                world.data(name, data.draw(times(shape)))
        world.compare()
    for name, partition in world.partitions.items():
        for time in list(partition.held):
            world.progress(name, time, None)
    world.compare()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_arrays_are_judged_as_single_batches_are(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    mode = data.draw(st.sampled_from([Mode.STREAMING, Mode.UNFILTERED]))
    resume = data.draw(st.booleans())
    start = data.draw(st.lists(times(shape), min_size=1, max_size=2)) if resume else None
    until = data.draw(st.lists(times(shape), max_size=2))
    low = minimal(data.draw(st.lists(times(shape, 2), min_size=1, max_size=3)))
    drawn = data.draw(st.lists(times(shape), max_size=2))
    upper = [t for t in drawn if not any(leq(s, t) for s in start or [])] if resume else drawn
    high = data.draw(st.sampled_from([6, 10**5, TIME_MAX // 2]))
    batches = data.draw(st.lists(times(shape, high), max_size=12))
    batches = [t for t in batches if any(leq(held, t) for held in low)]
    rows = data.draw(st.lists(st.integers(0, 5), min_size=len(batches), max_size=len(batches)))

    single, bulk = (
        Subscriber(["p"], shape, mode=mode, start=start, until=until, stored=True) for _ in range(2)
    )
    for subscriber in (single, bulk):
        subscriber.receive("p", Snapshot(tuple(sorted(low)), tuple(sorted(upper))))
    one_by_one = [
        isinstance(effect, Deliver)
        for time, count in zip(batches, rows, strict=True)
        for effect in single.receive("p", Data(time, "", count))
    ]
    array = np.array(batches, dtype=np.int64)
    if shape.length:
        array = array.reshape(len(batches), shape.length)
    counts = np.array(rows, dtype=np.int64)
    if single.end is End.OPEN:
        assert bulk.judge_many("p", array, counts).tolist() == one_by_one
        assert (bulk.delivered, bulk.dropped) == (single.delivered, single.dropped)
        links = [subscriber._links["p"] for subscriber in (single, bulk)]
        first, second = (link._rows for link in links)
        assert first is not None
        assert second is not None
        assert first._rows.items() == second._rows.items()
        assert sorted(single._given) == sorted(bulk._given)
