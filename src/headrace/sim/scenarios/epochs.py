"""Epochs: publishers of one to four partitions, and subscribers that come, go, lag and resume.

Half of the worlds are live only: a publisher that crashes has lost its data, and comes back beyond
all that it ever published.  In the other half everything is in a log as well: publishers go on
where they stopped, subscribers read the log, resume from tokens, and find history trimmed.

A link is a stream of numbered frames with a window, resent until confirmed, as a connection of a
transport would be; it breaks when one side is silent for too long.
"""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

import msgspec

from headrace.epochs import (
    INTEGERS,
    PAIRS,
    Advanced,
    Data,
    Deliver,
    Drop,
    Dropped,
    Effect,
    End,
    Ended,
    Epoch,
    EpochHistory,
    Frontier,
    FrontierUpdate,
    Joined,
    Message,
    Mode,
    Publisher,
    QueuePolicy,
    QueueSettings,
    Ready,
    ResumeToken,
    Skipped,
    Snapshot,
    Subscriber,
    Time,
    TimeShape,
)
from headrace.epochs.antichains import join, leave_out
from headrace.epochs.heartbeat import QuietLinks
from headrace.errors import EpochError, HistoryGoneError, PublisherBlockedError
from headrace.sim.epoch_oracle import Chain, EpochOracle, covered_from_below
from headrace.sim.faults import Fault
from headrace.sim.scenario import Action, Scenario
from headrace.sim.world import Process

STREAM = "orders"
TICK_MS = 250
WINDOW_FRAMES = 4
HEARTBEAT_MS = 600
LINK_TIMEOUT_MS = 3000
SILENCE_MS = 4000
PARTITIONS_MAX = 4


class Hello(msgspec.Struct, frozen=True):
    """A subscriber wants a link."""

    connection: str
    settings: QueueSettings


class Frame(msgspec.Struct, frozen=True):
    """One message on a link."""

    connection: str
    life: int
    """A connection that is made again is another one."""
    number: int
    message: Any


class Got(msgspec.Struct, frozen=True):
    """All frames up to a number were dealt with."""

    connection: str
    life: int
    number: int


class Bye(msgspec.Struct, frozen=True):
    """The subscriber has left."""

    connection: str


class Reset(msgspec.Struct, frozen=True):
    """There is no such link any more."""

    connection: str


class Outgoing:
    """A link as its publisher sees it."""

    def __init__(self, target: str, life: int, now_ms: int) -> None:
        self.target = target
        self.life = life
        self.number = 0
        self.unconfirmed: dict[int, Message] = {}
        self.heard_ms = now_ms


class Source(Process):
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
        history = self.scenario.histories.get(self.name)
        if history is not None and history.end:
            self.world.reach("publisher.recovered")
            self.publisher = Publisher(
                shape, lower=history.lower, upper=history.upper, rows=history.active_rows
            )
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
        """After every change: what the onlooker must know, and what must hold."""
        publisher = self.publisher
        self.scenario.oracle.advances(self.name, publisher.lower)
        self.scenario.oracle.remembers(self.name, publisher.upper)
        self.last_lower, self.last_upper = publisher.lower, publisher.upper
        self.world.require(
            list(publisher.subscribers) == list(self.links),
            "a publisher serves exactly those who are connected",
            f"{self.name}: {publisher.subscribers} but {list(self.links)}",
        )
        for name in publisher.subscribers:
            queue = publisher.queue(name)
            limit = queue.settings.batches_max
            self.world.require(
                queue.batches <= limit and len(queue) <= 2 * limit + 3,
                "queues are bounded",
                f"{name}: {queue.batches} batches, {len(queue)} messages, limit {limit}",
            )

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
        if self.scenario.durable and isinstance(message, Data | FrontierUpdate):
            self.scenario.append(self.name, message)

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


class Incoming:
    """A link, or a reader of the log, as its subscriber sees it."""

    def __init__(self, partition: str, connection: str) -> None:
        self.partition = partition
        self.connection = connection
        self.life: int | None = None
        self.expected = 1
        self.done = 0
        self.ahead: dict[int, Message] = {}
        self.inbox: deque[Message] = deque()
        self.offset: int | None = None
        """Where a reader of the log stands; None for a link."""


class Announced:
    """A partition that a subscriber knows of and has still to connect to."""

    def __init__(self, subscriber: Subscriber, partition: str, at: Frontier) -> None:
        self.subscriber = subscriber
        self.partition = partition
        self.at = at


class Client(Process):
    """A consumer: it subscribes, keeps its token, loses its links and goes on."""

    scenario: EpochsScenario
    mode = Mode.STREAMING
    settings = QueueSettings()
    lag_ms: tuple[int, int] | None = None
    wants = True
    attempts = 0
    token: str | None = None
    """What the consumer has kept, with what it has done; it survives a crash."""
    chain: Chain | None = None
    until: Frontier = ()

    def start(self) -> None:
        self.subscriber: Subscriber | None = None
        self.incoming: dict[str, Incoming] = {}
        self.quiet = QuietLinks(SILENCE_MS)
        self.after(self.world.rng.randint(1, TICK_MS), "tick")

    # --- beginning and ending ---

    def begin(self, *, resume: bool) -> None:
        """Subscribe: from the kept token, or from now."""
        self.leave()
        shape = self.scenario.shape
        start = None
        if resume and self.token is not None and self.chain is not None:
            start = ResumeToken.decode(self.token, STREAM, shape).frontier
        self.attempts += 1
        if start is None:
            self.until = self.scenario.draw_until()
            self.chain = Chain(self.scenario.oracle, self.name, self.mode, self.until)
            self.token = None
        elif self.chain is not None:
            self.world.reach("subscriber.resumes")
            self.chain.resumes()
        partitions = list(self.scenario.sources)
        self.subscriber = Subscriber(
            partitions, shape, mode=self.mode, start=start, until=self.until
        )
        by_log = self.scenario.durable and (start is not None or self.world.rng.random() < 0.5)
        for partition in partitions:
            self._connect(partition, start, by_log=by_log)

    def _connect(self, partition: str, start: Frontier | None, *, by_log: bool) -> None:
        connection = f"{self.name}.{self.incarnation}.{self.attempts}.{partition}"
        incoming = Incoming(partition, connection)
        self.incoming[partition] = incoming
        if not by_log:
            self.quiet.heard(partition, self.now_ms)
            self.send(partition, Hello(connection, self.settings))
            return
        history = self.scenario.histories[partition]
        if start is None:
            incoming.offset = history.end
            incoming.inbox.append(Snapshot(history.lower, history.upper))
            return
        try:
            begin = history.start(start)
        except HistoryGoneError:
            self._history_gone()
            return
        incoming.offset = begin.offset
        incoming.inbox.append(begin.snapshot)

    def _history_gone(self) -> None:
        self.world.reach("subscriber.history gone")
        self.leave()
        self.token = None

    def leave(self) -> None:
        """Give up the subscription and its links; the token stays."""
        for incoming in self.incoming.values():
            if incoming.offset is None:
                self.send(incoming.partition, Bye(incoming.connection))
        self.incoming = {}
        self.quiet = QuietLinks(SILENCE_MS)
        self.subscriber = None

    def partition_added(self, partition: str, at: Frontier) -> None:
        """A new partition was announced, to begin at a frontier in the future."""
        subscriber = self.subscriber
        if subscriber is None or subscriber.end is not End.OPEN:
            return
        if not subscriber.ready:
            self.leave()
            return
        self.world.reach("subscriber.partition added")
        subscriber.add_partition(partition, at)
        self.after(self.world.rng.randint(1, 2000), Announced(subscriber, partition, at))

    # --- links ---

    def receive(self, source: str, message: Any) -> None:
        incoming = self.incoming.get(source)
        if isinstance(message, Frame):
            if incoming is None or incoming.connection != message.connection:
                self.send(source, Bye(message.connection))
                return
            self._framed(incoming, message)
        elif incoming is not None and message == Reset(incoming.connection):
            self._lost(source, "reset")

    def _framed(self, incoming: Incoming, frame: Frame) -> None:
        if incoming.life is None:
            incoming.life = frame.life
        elif frame.life < incoming.life:
            return  # left over from an earlier connection
        elif frame.life > incoming.life:
            self.send(incoming.partition, Bye(incoming.connection))
            self._lost(incoming.partition, "another connection")
            return
        self.quiet.heard(incoming.partition, self.now_ms)
        if frame.number < incoming.expected:
            self._confirm(incoming)
            return
        incoming.ahead[frame.number] = frame.message
        while incoming.expected in incoming.ahead:
            incoming.inbox.append(incoming.ahead.pop(incoming.expected))
            incoming.expected += 1
        if self.lag_ms is None:
            while self.incoming.get(incoming.partition) is incoming and incoming.inbox:
                self._consume(incoming)
        elif incoming.inbox:
            self.after(self.world.rng.randint(*self.lag_ms), incoming)

    def _confirm(self, incoming: Incoming) -> None:
        if incoming.life is not None:
            got = Got(incoming.connection, incoming.life, incoming.done)
            self.send(incoming.partition, got)

    def _lost(self, partition: str, reason: str) -> None:
        subscriber = self.subscriber
        self.incoming.pop(partition, None)
        self.quiet.forget(partition)
        if subscriber is not None:
            self._do(subscriber, subscriber.lost(partition, reason))

    def timer(self, tag: Any) -> None:
        if isinstance(tag, Announced):
            if self.subscriber is tag.subscriber:
                by_log = any(incoming.offset is not None for incoming in self.incoming.values())
                # The log of a new partition holds all it has to say, a link only what is to come.
                self._connect(tag.partition, tag.at if by_log else None, by_log=by_log)
            return
        if isinstance(tag, Incoming):
            if self.incoming.get(tag.partition) is tag and tag.inbox:
                self._consume(tag)
                if tag.inbox and self.lag_ms is not None:
                    self.after(self.world.rng.randint(*self.lag_ms), tag)
            return
        self.after(TICK_MS, "tick")
        if self.subscriber is None:
            if self.wants:
                self.begin(resume=self.world.rng.random() < 0.8)
            return
        if self.subscriber.end is End.ABORTED:
            self.world.reach("subscriber.aborted")
            self.leave()
            return
        for partition in self.quiet.quiet(self.now_ms):
            self.world.reach("link.silent")
            self._lost(partition, "silent")
        for incoming in list(self.incoming.values()):
            if incoming.offset is not None:
                self._read(incoming)
            elif incoming.expected == 1:
                self.send(incoming.partition, Hello(incoming.connection, self.settings))

    def _read(self, incoming: Incoming) -> None:
        """Read on in the log."""
        assert incoming.offset is not None
        log, base = self.scenario.logs[incoming.partition], self.scenario.bases[incoming.partition]
        if incoming.offset < base:
            self.world.reach("subscriber.trimmed away")
            self._lost(incoming.partition, "trimmed")
            return
        count = 1 if self.lag_ms is not None else self.world.rng.randint(1, 20)
        records = log[incoming.offset : incoming.offset + count]
        incoming.inbox.extend(records)
        incoming.offset += len(records)
        while self.incoming.get(incoming.partition) is incoming and incoming.inbox:
            self._consume(incoming)

    def _consume(self, incoming: Incoming) -> None:
        subscriber = self.subscriber
        assert subscriber is not None
        message = incoming.inbox.popleft()
        incoming.done += 1
        try:
            effects = subscriber.receive(incoming.partition, message)
        except HistoryGoneError:
            self._history_gone()
            return
        except EpochError as error:
            self.world.fail("legal traffic is accepted", f"{self.name}: {error}")
            return
        self._confirm(incoming)
        self._do(subscriber, effects)

    # --- what the consumer does ---

    def _do(self, subscriber: Subscriber, effects: list[Effect]) -> None:
        chain = self.chain
        assert chain is not None
        reach = self.world.reach
        for effect in effects:
            match effect:
                case Ready(lower=lower, upper=upper):
                    if not subscriber.resumed:
                        chain.begins(lower, upper)
                case Joined(at=at, upper=upper):
                    reach("subscriber.joined")
                    chain.joins(at, upper)
                case Deliver(data=data):
                    chain.given(data.time, data.payload)
                case Dropped(data=data, why=why):
                    reach(f"batch.{why}")
                    if why is Drop.FILTERED:
                        chain.dropped(data.time)
                case Epoch(time=time, batches=batches, resume=resume):
                    for batch in batches:
                        chain.given(time, batch.data.payload)
                    chain.advances(resume)
                    self._remember(resume)
                    reach("epoch.whole")
                    if self.world.faults.strikes(Fault.CRASH, 0.02):
                        # The consumer stops in the middle of what one step has completed.
                        reach("subscriber.stopped between epochs")
                        self.leave()
                        return
                case Advanced(frontier=frontier):
                    chain.advances(frontier)
                    self._remember(frontier)
                case Skipped(upper=upper):
                    reach("queue.skipped")
                    chain.skips(upper)
                case Ended(end=end):
                    self.note("ends: %s", effect)
                    reach(f"end.{end}")
                    chain.ends(end)

    def _remember(self, frontier: Frontier) -> None:
        self.token = ResumeToken(STREAM, self.scenario.shape, frontier).encode()


class EpochsScenario(Scenario):
    """Everything above, put together from the seed."""

    name: ClassVar[str] = "epochs"
    about: ClassVar[str] = "epochs: publishers, subscribers of whole epochs, lag, loss and resuming"
    steps: ClassVar[int] = 2000
    action_ms: ClassVar[int] = 20
    mishap_ms: ClassVar[int] = 2500
    pause_ms: ClassVar[tuple[int, int]] = (100, 6000)

    def build(self) -> None:
        rng = self.world.rng
        self.shape: TimeShape = rng.choice((INTEGERS, PAIRS))
        self.durable = rng.random() < 0.5
        self.closing = False
        self.oracle = EpochOracle(self.world)
        self.logs: dict[str, list[Message]] = {}
        self.bases: dict[str, int] = {}
        self.histories: dict[str, EpochHistory] = {}
        self.sources: dict[str, Source] = {}
        for _ in range(rng.randint(1, PARTITIONS_MAX)):
            self._spawn_source(None)
        self.clients = [self._spawn_client(f"c{n}") for n in range(rng.randint(1, 4))]

    def _spawn_source(self, at: Frontier | None) -> Source:
        name = f"p{len(self.sources)}"
        source = Source(self.world, name)
        source.scenario = self
        source.at = at
        if self.durable:
            self.logs[name], self.bases[name] = [], 0
            self.histories[name] = EpochHistory(self.shape)
            if at is not None:
                first = FrontierUpdate(((self.shape.bottom, -1), *((time, 1) for time in at)))
                self.append(name, first)
        self.sources[name] = source
        self.world.spawn(source)
        return source

    def _spawn_client(self, name: str) -> Client:
        rng = self.world.rng
        client = Client(self.world, name)
        client.scenario = self
        client.mode = rng.choice((Mode.STREAMING, Mode.WHOLE, Mode.WHOLE, Mode.UNFILTERED))
        policy = rng.choice(tuple(QueuePolicy))
        client.settings = QueueSettings(policy, rng.randint(1, 12), rng.random() < 0.3)
        if self.world.faults.strikes(Fault.SLOW, 0.5):
            client.lag_ms = (20, 400)
        self.world.spawn(client)
        return client

    def append(self, partition: str, record: Data | FrontierUpdate) -> None:
        """Write to the log of a partition."""
        log = self.logs[partition]
        self.histories[partition].append(len(log), record)
        log.append(record)

    def farthest(self, time: Time) -> Time:
        """A time at or after `time` and after what is completed in every partition."""
        for source in self.sources.values():
            for lower in source.last_lower or ():
                time = self.shape.join(time, lower)
        return time

    def draw_until(self) -> Frontier:
        """Some subscriptions stop at a frontier not far ahead."""
        rng = self.world.rng
        if self.closing or rng.random() < 0.7:
            return ()
        if self.shape.length == 0:
            return (rng.randint(1, 60),)
        return ((rng.randint(0, 12), rng.randint(1, 12)), (rng.randint(1, 20), 0))

    # --- what the outside does ---

    def actions(self) -> list[Action]:
        return [
            Action("publish", 60, self._publish),
            Action("progress", 40, self._progress),
            Action("misbehave", 3, self._misbehave),
            Action("come or go", 1, self._come_or_go),
            Action("abort", 1, self._abort),
            Action("close", 1, self._close),
            Action("trim", 1, self._trim),
            Action("add a partition", 1, self._add_partition, Fault.SCALE),
        ]

    def _awake(self) -> list[Source]:
        return [s for s in self.sources.values() if s.alive and not s.paused]

    def _pick(self) -> Source | None:
        awake = self._awake()
        return self.world.rng.choice(awake) if awake else None

    def _publish(self) -> None:
        if source := self._pick():
            for _ in range(self.world.rng.randint(1, 4)):
                source.publish()

    def _progress(self) -> None:
        if source := self._pick():
            source.progress()

    def _misbehave(self) -> None:
        if source := self._pick():
            source.misbehave()

    def _abort(self) -> None:
        if (source := self._pick()) and self.world.faults.strikes(Fault.FAIL, 0.3):
            source.abort()

    def _close(self) -> None:
        if self.world.rng.random() < 0.1 and (source := self._pick()):
            source.close()

    def _come_or_go(self) -> None:
        rng = self.world.rng
        awake = [client for client in self.clients if client.alive and not client.paused]
        if awake:
            client = rng.choice(awake)
            if client.subscriber is None:
                client.wants = True
            elif rng.random() < 0.5:
                client.wants = False
                client.leave()
            else:
                client.begin(resume=rng.random() < 0.8)

    def _trim(self) -> None:
        if self.durable:
            name = self.world.rng.choice(list(self.logs))
            end = len(self.logs[name])
            offset = max(self.bases[name], end - self.world.rng.randint(0, 60))
            self.bases[name] = offset
            self.histories[name].trim(offset)

    def _add_partition(self) -> None:
        """Announce a partition beyond everything that was published or completed."""
        if len(self.sources) >= PARTITIONS_MAX:
            return
        at: Frontier = (self.shape.bottom,)
        for source in self.sources.values():
            at = leave_out(self.shape, at, source.last_upper)
            if source.last_lower:
                at = join(self.shape, at, source.last_lower)
        if self.oracle.closed:
            return  # a closed stream takes no partition
        source = self._spawn_source(at)
        for client in self.clients:
            if client.alive:
                client.partition_added(source.name, at)

    # --- coming to rest ---

    def healed(self) -> None:
        self.closing = True
        for client in self.clients:
            client.wants = True
            client.lag_ms = None if client.lag_ms is None else (1, 10)

    def quiescent(self) -> bool:
        return self.oracle.closed and all(
            client.subscriber is not None and client.subscriber.end in (End.CLOSED, End.REACHED)
            for client in self.clients
        )

    def unsettled(self) -> str:
        waiting = {client.name: repr(client.subscriber) for client in self.clients}
        return f"partitions {self.oracle.lowers}; subscribers {waiting}"

    def final(self) -> None:
        for client in self.clients:
            if client.chain is not None:
                self.world.reached["epochs whole"] += client.chain.whole


SCENARIO = EpochsScenario
