"""What publishers leave out changes nothing of what a subscription is given.

Two subscribers hear the same publishers and are sent what waits at the same moments: one of them
everything, the other without what its publishers know to be dropped.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.epochs import (
    Data,
    Deliver,
    Dropped,
    Ended,
    Epoch,
    GaveUp,
    Joined,
    Mode,
    Publisher,
    QueuePolicy,
    QueueSettings,
    Ready,
    Skipped,
    Subscriber,
    TakenBack,
)
from headrace.epochs.core.times import TimeShape
from headrace.errors import EpochError
from tests.epochs.core.support import SHAPES, times


class Hearing:
    """A subscription to all partitions, and everything that it was told."""

    def __init__(
        self, shape: TimeShape, mode: Mode, publishers: dict[str, Publisher], *, filtered: bool
    ) -> None:
        self.name = f"filtered={filtered}"
        self._settings = QueueSettings(QueuePolicy.BLOCK, 10_000, filtered)
        self._publishers = publishers
        self.core = Subscriber(sorted(publishers), shape, mode=mode)
        self.given: list[tuple[object, ...]] = []
        self.received = 0
        for publisher in publishers.values():
            publisher.connect(self.name, self._settings)

    def add(self, partition: str) -> str:
        """Hear one more; what it says of that is the same for both, too."""
        publisher = self._publishers[partition]
        try:
            self.core.add_partition(partition, publisher.lower)
        except EpochError as error:
            return type(error).__name__
        publisher.connect(self.name, self._settings)
        return "added"

    def hear(self, partition: str) -> None:
        """Take in all that waits at a publisher."""
        for message in self._publishers[partition].take(self.name, 1000):
            self.received += isinstance(message, Data)
            for effect in self.core.receive(partition, message):
                self._told(effect)

    def lose(self, partition: str) -> None:
        for effect in self.core.lost(partition, "gone"):
            self._told(effect)

    def _told(self, effect: object) -> None:
        match effect:
            case Epoch(time=time, batches=batches):
                self.given.append(("epoch", time, [(b.partition, b.data) for b in batches]))
            case Deliver(partition=partition, data=data):
                self.given.append(("batch", partition, data))
            case TakenBack() if self.given[-1:] == [(effect,)]:
                pass  # twice in a row is once, where nothing that counts lies between
            case Ready() | Joined() | Skipped() | TakenBack() | Ended() | GaveUp():
                self.given.append((effect,))
            case Dropped(data=data):
                assert data.payload is not None

    @property
    def state(self) -> tuple[object, ...]:
        """Where it is: the frontier, the filter, and how it ended."""
        core = self.core
        return core.frontier, core.filter, core.ready, core.end, core.waiting_for()

    def take(self) -> list[tuple[object, ...]]:
        """What was given since: epochs that two updates completed may come with one."""
        found, self.given = self.given, []
        return sorted(found, key=repr)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_what_publishers_leave_out_is_missed_by_nobody(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    mode = data.draw(st.sampled_from([Mode.WHOLE, Mode.STREAMING]))
    publishers = {f"p{n}": Publisher(shape) for n in range(data.draw(st.integers(1, 3)))}
    twins: list[Hearing] = []
    lost: set[str] = set()

    def source(publisher: Publisher) -> None:
        held = publisher.lower
        if publisher.aborted is not None or not held:
            return
        time = data.draw(times(shape))
        try:
            match data.draw(st.integers(0, 9)):
                case 0 | 1 | 2:
                    publisher.progress([(data.draw(st.sampled_from(held)), -1), (time, 1)])
                case 3:
                    publisher.progress([(time, 1)])
                case 4:
                    publisher.take_back()
                case 5 if len(twins) and data.draw(st.integers(0, 3)) == 0:
                    if data.draw(st.booleans()):
                        publisher.close()
                    else:
                        publisher.abort("x")
                case _:
                    publisher.data(time, object(), data.draw(st.integers(0, 3)))
        except EpochError:
            pass

    for _ in range(data.draw(st.integers(0, 10))):
        source(publishers[data.draw(st.sampled_from(sorted(publishers)))])
    twins += [Hearing(shape, mode, publishers, filtered=each) for each in (False, True)]
    for _ in range(data.draw(st.integers(1, 40))):
        heard = [name for name in sorted(twins[0].core.partitions) if name not in lost]
        match data.draw(st.integers(0, 7)):
            case 0 if len(publishers) < 6:
                name = f"p{len(publishers)}"
                at = {publisher.lower for publisher in publishers.values()}
                lower = data.draw(st.sampled_from(sorted(at, key=repr)))
                publishers[name] = Publisher(shape, lower=lower or None)
                for _ in range(data.draw(st.integers(0, 4))):
                    source(publishers[name])
                assert len({twin.add(name) for twin in twins}) == 1
            case 1 if heard and data.draw(st.integers(0, 4)) == 0:
                name = data.draw(st.sampled_from(heard))
                lost.add(name)
                for twin in twins:
                    twin.lose(name)
            case 2 | 3 | 4 if heard:
                name = data.draw(st.sampled_from(heard))
                for twin in twins:
                    twin.hear(name)
            case _:
                source(publishers[data.draw(st.sampled_from(sorted(publishers)))])
        everything, left_out = twins
        assert everything.take() == left_out.take()
        assert everything.state == left_out.state
        assert left_out.received <= everything.received
