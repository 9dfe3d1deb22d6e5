"""The consuming side of the epochs scenario: subscribe, keep a token, lose links, go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.epochs import (
    Advanced,
    Deliver,
    Drop,
    Dropped,
    Effect,
    End,
    Ended,
    Epoch,
    Frontier,
    GaveUp,
    Joined,
    Mode,
    QueueSettings,
    Ready,
    ResumeToken,
    Skipped,
    Subscriber,
    TakenBack,
    WhenFull,
)
from headrace.epochs.core.feed import LineFeed
from headrace.epochs.core.heartbeat import QuietLinks
from headrace.errors import (
    EpochBufferFullError,
    EpochError,
    FrontierError,
    HistoryGoneError,
    InvalidConfigError,
)
from headrace.sim.epoch_oracle import Chain, covered_from_below
from headrace.sim.faults import Fault
from headrace.sim.scenarios.epochs_links import (
    SILENCE_MS,
    TICK_MS,
    Announced,
    Bye,
    Frame,
    Got,
    Hello,
    Incoming,
    Reset,
)
from headrace.sim.scenarios.epochs_log import GONE
from headrace.sim.world import Process

if TYPE_CHECKING:
    from headrace.sim.scenarios.epochs import EpochsScenario

CATALOG = "catalog"
STREAMS = (("orders", "1"),)


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
    batches_max: int | None = None
    when_full = WhenFull.GIVE_UP

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
            start = ResumeToken.decode(self.token, CATALOG, STREAMS, shape).frontier
        self.attempts += 1
        partitions = list(self.scenario.sources)
        likely = 0.5 if start is None else 0.9
        by_log = self.scenario.durable and self.world.rng.random() < likely
        try:
            self.subscriber = self._subscriber(partitions, start, by_log=by_log)
        except InvalidConfigError:
            self.world.reach("subscriber.resume refused")
            start = None
        if start is None:
            self.until = self.scenario.draw_until()
            self.chain = Chain(self.scenario.oracle, self.name, self.mode, self.until)
            self.token = None
            self.subscriber = self._subscriber(partitions, None, by_log=by_log)
        elif self.chain is not None:
            self.world.reach("subscriber.resumes")
            self.chain.resumes()
        for partition in partitions:
            self._connect(partition, start, by_log=by_log)

    def _subscriber(
        self, partitions: list[str], start: Frontier | None, *, by_log: bool
    ) -> Subscriber:
        return Subscriber(
            partitions,
            self.scenario.shape,
            mode=self.mode,
            start=start,
            until=self.until,
            batches_max=self.batches_max,
            when_full=self.when_full,
            stored=self.scenario.durable,
            counts=not by_log,
        )

    def _connect(self, partition: str, start: Frontier | None, *, by_log: bool) -> None:
        connection = f"{self.name}.{self.incarnation}.{self.attempts}.{partition}"
        incoming = Incoming(partition, connection)
        self.incoming[partition] = incoming
        if not by_log:
            self.quiet.heard(partition, self.now_ms)
            self.send(partition, Hello(connection, self.settings))
            return
        log = self.scenario.logs[partition]
        try:
            begin = log.end if start is None else log.start(start)
        except HistoryGoneError:
            self._history_gone()
            return
        incoming.line = begin.line
        incoming.feed = LineFeed(partition, begin.lower)
        # From now on: what had begun is left out.
        incoming.inbox.append(incoming.feed.snapshot(log.state.upper if start is None else ()))

    def _history_gone(self) -> None:
        self.world.reach("subscriber.history gone")
        self.leave()
        self.token = None

    def leave(self) -> None:
        """Give up the subscription and its links; the token stays."""
        for incoming in self.incoming.values():
            if incoming.line is None:
                self.send(incoming.partition, Bye(incoming.connection))
        self.incoming = {}
        self.quiet = QuietLinks(SILENCE_MS)
        self.subscriber = None

    def partition_added(self, partition: str, at: Frontier) -> None:
        """A new partition was announced, to begin at a frontier in the future."""
        subscriber = self.subscriber
        if subscriber is None or subscriber.end not in (End.OPEN, End.ABORTED):
            return
        if not subscriber.ready:
            self.leave()
            return
        by_log = any(incoming.line is not None for incoming in self.incoming.values())
        try:
            subscriber.add_partition(partition, at, from_beginning=by_log)
        except FrontierError:
            # Data there was given already: the subscription starts over.
            self.world.reach("subscriber.partition refused")
            self.leave()
            return
        self.world.reach("subscriber.partition added")
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
            self._consume_all(incoming)
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
                by_log = tag.subscriber.heard_from_beginning(tag.partition)
                # The log of a new partition holds all it has to say, a link only what is to come.
                self._connect(tag.partition, tag.at if by_log else None, by_log=by_log)
            return
        if isinstance(tag, Incoming):
            if self.incoming.get(tag.partition) is tag and tag.inbox:
                if self.lag_ms is None:
                    self._consume_all(tag)
                    return
                self._consume(tag)
                if tag.inbox:
                    self.after(self.world.rng.randint(*self.lag_ms), tag)
            return
        self.after(TICK_MS, "tick")
        if self.subscriber is None:
            if self.wants:
                self.begin(resume=self.world.rng.random() < 0.8)
            return
        if self.subscriber.end in (End.ABORTED, End.FULL):
            self.world.reach(f"subscriber.{self.subscriber.end}")
            self.leave()
            return
        for partition in self.quiet.quiet(self.now_ms):
            self.world.reach("link.silent")
            self._lost(partition, "silent")
        for incoming in list(self.incoming.values()):
            if incoming.line is not None:
                self._read(incoming)
            elif incoming.expected == 1:
                self.send(incoming.partition, Hello(incoming.connection, self.settings))

    def _read(self, incoming: Incoming) -> None:
        """Read on in the log."""
        assert incoming.line is not None
        assert incoming.feed is not None
        log = self.scenario.logs[incoming.partition]
        if incoming.line < log.first_line:
            self.world.reach("subscriber.trimmed away")
            self._lost(incoming.partition, "trimmed")
            return
        count = 1 if self.lag_ms is not None else self.world.rng.randint(1, 20)
        end = min(incoming.line + count, len(log.lines))
        for number in range(incoming.line, end):
            incoming.inbox.extend(log.messages(incoming.feed, number))
        incoming.line = end
        self._consume_all(incoming)

    def _consume_all(self, incoming: Incoming) -> None:
        while self.incoming.get(incoming.partition) is incoming and incoming.inbox:
            if not self._consume(incoming):
                return

    def _consume(self, incoming: Incoming) -> bool:
        """Take the next message; whether there may be more."""
        subscriber = self.subscriber
        assert subscriber is not None
        message = incoming.inbox.popleft()
        try:
            effects = subscriber.receive(incoming.partition, message)
        except EpochBufferFullError:
            # It waits for another partition, and this link for room.
            self.world.reach("subscriber.waits for room")
            incoming.inbox.appendleft(message)
            if self.lag_ms is None:
                self.after(TICK_MS, incoming)
            return False
        except HistoryGoneError:
            self._history_gone()
            return False
        except EpochError as error:
            self.world.fail("legal traffic is accepted", f"{self.name}: {error}")
            return False
        incoming.done += 1
        self._confirm(incoming)
        self._do(subscriber, effects)
        return True

    # --- what the consumer does ---

    def _do(self, subscriber: Subscriber, effects: list[Effect]) -> None:
        chain = self.chain
        assert chain is not None
        reach = self.world.reach
        for effect in effects:
            if self._trimmed(effect):
                return
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
                case GaveUp(time=time):
                    reach("epoch.given up")
                    chain.gives_up(time)
                case TakenBack(partition=partition, held=held):
                    reach("epoch.taken back")
                    chain.taken_back(partition, held)
                case Skipped(upper=upper):
                    reach("queue.skipped")
                    chain.skips(upper)
                case Ended(end=end):
                    self.note("ends: %s", effect)
                    reach(f"end.{end}")
                    chain.ends(end)

    def _trimmed(self, effect: Effect) -> bool:
        """Whether rows are gone that were there when the subscription began; it starts over."""
        given: tuple[Deliver, ...] = ()
        if isinstance(effect, Deliver):
            given = (effect,)
        elif isinstance(effect, Epoch):
            given = effect.batches
        gone = [one for one in given if one.data.payload is GONE]
        for one in gone:
            since = self.scenario.logs[one.partition].kept.since
            self.world.require(
                not covered_from_below(since, one.data.time),
                "all is there from since on",
                f"{self.name}: {one.data.time} is gone, since is {since}",
            )
        if gone:
            self.world.reach("subscriber.rows trimmed")
            self.leave()
        return bool(gone)

    def _remember(self, frontier: Frontier) -> None:
        self.token = ResumeToken(CATALOG, STREAMS, self.scenario.shape, frontier).encode()
