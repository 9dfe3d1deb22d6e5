"""The publishing side of the epochs scenario: a partition, its source and its links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.epochs import (
    Data,
    Frontier,
    FrontierUpdate,
    Message,
    Publisher,
    TakeBack,
    Time,
)
from headrace.epochs.core.antichains import leave_out
from headrace.epochs.core.heartbeat import QuietLinks
from headrace.errors import EpochError, PublisherBlockedError
from headrace.sim.epoch_oracle import covered_from_below
from headrace.sim.scenarios.epochs_links import (
    HEARTBEAT_MS,
    LINK_TIMEOUT_MS,
    TICK_MS,
    WINDOW_FRAMES,
    Bye,
    Frame,
    Got,
    Hello,
    Outgoing,
    Reset,
)
from headrace.sim.world import Process

if TYPE_CHECKING:
    from headrace.sim.scenarios.epochs import EpochsScenario


class EpochSource(Process):
    """A partition: its source, its publisher, and the links to its subscribers."""

    scenario: EpochsScenario
    at: Frontier | None = None
    """Where a partition that was added later begins."""
    last_lower: Frontier | None = None
    last_upper: Frontier = ()
    """What the source remembers of an earlier life."""
    items = 0
    lives = 0

    def start(self) -> None:
        shape = self.scenario.shape
        log = self.scenario.logs.get(self.name)
        if log is not None and not log.is_new:
            self.world.reach("publisher.recovered")
            self.publisher = Publisher(shape, lower=log.state.lower, upper=log.state.upper)
        elif self.last_lower is not None:
            self.world.reach("publisher.began anew")
            beyond = leave_out(shape, self.last_lower, self.last_upper)
            self.publisher = Publisher(shape, lower=beyond, upper=self.last_upper)
        else:
            self.publisher = Publisher(shape, lower=self.at)
        self.links: dict[str, Outgoing] = {}
        self.quiet = QuietLinks(HEARTBEAT_MS)
        self._watched()
        self.after(TICK_MS, "tick")

    def _watched(self) -> None:
        """After every change: tell the oracle, and check what must hold."""
        publisher = self.publisher
        self.scenario.oracle.advances(self.name, publisher.lower)
        self.scenario.oracle.remembers(self.name, publisher.upper)
        self.last_lower, self.last_upper = publisher.lower, publisher.upper
        if list(publisher.subscribers) != list(self.links):
            self.world.fail(
                "a publisher serves exactly those who are connected",
                f"{self.name}: {publisher.subscribers} but {list(self.links)}",
            )
        for name in publisher.subscribers:
            queue = publisher.queue(name)
            limit = queue.settings.batches_max
            if queue.batches > limit or len(queue) > 3 * limit + 5:
                what = f"{name}: {queue.batches} batches, {len(queue)} messages, limit {limit}"
                self.world.fail("queues are bounded", what)

    # --- the source ---

    def publish(self) -> None:
        rng, publisher = self.world.rng, self.publisher
        if publisher.closed or publisher.aborted is not None:
            return
        time = self._later(rng.choice(publisher.lower))
        item = (self.name, self.items)
        try:
            published = publisher.data(time, item)
        except PublisherBlockedError:
            self.world.reach("publisher.blocked")
            return
        self.items += 1
        self.scenario.oracle.publishes(item, time)
        self._keep(published.message)
        for cut in published.cut:
            self.world.reach("queue.disconnected")
            target = self.links.pop(cut.subscriber).target
            self.quiet.forget(cut.subscriber)
            self.send(target, Reset(cut.subscriber))
        self._watched()
        self._pump_all()

    def _later(self, time: Time) -> Time:
        """A time at or after one, near it."""
        rng = self.world.rng
        if isinstance(time, int):
            return time + rng.choice((0, 0, 0, 1, 1, 2, 5))
        return tuple(part + rng.choice((0, 0, 0, 1, 2)) for part in time)

    def progress(self) -> None:
        """Exchange a held time for later ones, or hold one more."""
        rng, publisher = self.world.rng, self.publisher
        if publisher.closed or publisher.aborted is not None:
            return
        held = list(publisher.capabilities)
        time = rng.choice(held)
        match rng.random():
            case chance if chance < 0.15:
                updates = [(self._later(time), 1)]
            case chance if chance < 0.25 and len(held) > 1:
                updates = [(time, -1)]
            case chance if chance < 0.65:
                # Let go of everything before the farthest that any partition has got to.
                goal = self.scenario.farthest(time)
                held_times = publisher.capabilities.items()
                updates = [(goal, 1), *((other, -count) for other, count in held_times)]
            case _:
                updates = [(time, -1), (self._later(time), 1)]
                if isinstance(time, tuple) and len(held) < 4:
                    updates.append((self._later(time), 1))
        self._keep(publisher.progress(updates).message)
        self._watched()
        self._pump_all()

    def misbehave(self) -> None:
        """Try what must be refused."""
        rng, publisher = self.world.rng, self.publisher
        times = sorted(self.scenario.oracle.published)
        completed = [t for t in times if not covered_from_below(publisher.lower, t)]
        if not completed:
            return
        time = rng.choice(completed)
        before = (publisher.capabilities, publisher.lower, publisher.upper, publisher.active_rows)
        try:
            if rng.random() < 0.5:
                publisher.data(time, "bad")
            else:
                publisher.progress([(time, 1)])
        except EpochError:
            self.world.reach("publisher.refused")
        else:
            self.world.fail("illegal times are refused", f"{self.name}: {time} with {publisher}")
        after = (publisher.capabilities, publisher.lower, publisher.upper, publisher.active_rows)
        self.world.require(before == after, "a refusal changes nothing", f"{before} to {after}")

    def take_back(self) -> None:
        """Begin the open epochs anew."""
        publisher = self.publisher
        if publisher.closed or publisher.aborted is not None:
            return
        self.world.reach("publisher.took back")
        self.scenario.oracle.takes_back(self.name, publisher.lower)
        self._keep(publisher.take_back().message)
        self._watched()
        self._pump_all()

    def close(self) -> None:
        if not self.publisher.closed and self.publisher.aborted is None:
            self.world.reach("publisher.closed")
            self._keep(self.publisher.close().message)
            self._watched()
            self._pump_all()

    def abort(self) -> None:
        """The source fails in a way that it can still tell."""
        if not self.publisher.closed and self.publisher.aborted is None:
            self.world.reach("publisher.aborted")
            self.publisher.abort("the source failed")
            self._pump_all()
            self.after(1000, "die")

    def _keep(self, message: object) -> None:
        """A durable partition writes to the log what it tells its subscribers."""
        if self.scenario.durable and isinstance(message, Data | FrontierUpdate | TakeBack):
            self.scenario.logs[self.name].append(message)

    # --- the links ---

    def receive(self, source: str, message: Any) -> None:
        match message:
            case Hello(connection=connection, settings=settings):
                if connection not in self.links:
                    self.publisher.connect(connection, settings)
                    self.lives += 1
                    self.links[connection] = Outgoing(source, self.lives, self.now_ms)
                    self._watched()
                self._pump(connection)
            case Got(connection=connection, life=life, number=number) if (
                link := self.links.get(connection)
            ) and link.life == life:
                link.heard_ms = self.now_ms
                for done in [n for n in link.unconfirmed if n <= number]:
                    del link.unconfirmed[done]
                self._pump(connection)
            case Got(connection=connection):
                self.send(source, Reset(connection))
            case Bye(connection=connection) if connection in self.links:
                self.world.reach("link.left")
                self._drop(connection)

    def _drop(self, connection: str) -> None:
        del self.links[connection]
        self.quiet.forget(connection)
        self.publisher.disconnect(connection)
        self._watched()

    def _pump_all(self) -> None:
        for connection in list(self.links):
            self._pump(connection)

    def _pump(self, connection: str) -> None:
        link = self.links[connection]
        room = WINDOW_FRAMES - len(link.unconfirmed)
        if room > 0:
            for message in self.publisher.take(connection, room):
                self._send(connection, link, message)

    def _send(self, connection: str, link: Outgoing, message: Message) -> None:
        link.number += 1
        link.unconfirmed[link.number] = message
        self.quiet.heard(connection, self.now_ms)
        self.send(link.target, Frame(connection, link.life, link.number, message))

    def timer(self, tag: Any) -> None:
        if tag == "die":
            self.world.crash(self, self.world.rng.randint(50, 2000))
            return
        for connection, link in list(self.links.items()):
            if link.unconfirmed and self.now_ms - link.heard_ms > LINK_TIMEOUT_MS:
                self.world.reach("link.timed out")
                self._drop(connection)
                self.send(link.target, Reset(connection))
            else:
                for number, message in link.unconfirmed.items():
                    self.send(link.target, Frame(connection, link.life, number, message))
        for connection in self.quiet.quiet(self.now_ms):
            beat = self.publisher.heartbeat(connection)
            if beat is not None and not self.links[connection].unconfirmed:
                self.world.reach("link.heartbeat")
                self._send(connection, self.links[connection], beat)
        if self.scenario.closing:
            self.close()
        self.after(TICK_MS, "tick")
