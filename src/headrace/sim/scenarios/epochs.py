"""Epochs: publishers of one to four partitions, and subscribers that come, go, lag and resume.

Half of the worlds are live only: a publisher that crashes has lost its data, and comes back beyond
all that it ever published.  In the other half everything is in a log as well: publishers go on
where they stopped, subscribers read the log, resume from tokens, and find history trimmed.  Lines,
search and ``since`` of that log are those of stored streams (``epochs_log``).

A quarter of the worlds are streams that are stored by the ledger; see ``epochs_stored``.

A link is a stream of numbered frames with a window, resent until confirmed, as a connection of a
transport would be; it breaks when one side is silent for too long.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.epochs import (
    INTEGERS,
    PAIRS,
    End,
    Frontier,
    Mode,
    QueuePolicy,
    QueueSettings,
    Time,
    TimeShape,
    WhenFull,
)
from headrace.epochs.core.antichains import join, leave_out
from headrace.sim.epoch_oracle import EpochOracle
from headrace.sim.faults import Fault
from headrace.sim.scenario import Action, Scenario
from headrace.sim.scenarios.epochs_client import Client
from headrace.sim.scenarios.epochs_log import PartitionLog
from headrace.sim.scenarios.epochs_source import EpochSource
from headrace.sim.scenarios.epochs_stored import StoredStream

PARTITIONS_MAX = 4


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
        self.stored = StoredStream(self.world, self.shape) if rng.random() < 0.25 else None
        self.clients: list[Client] = []
        self.oracle = EpochOracle(self.world)
        self.logs: dict[str, PartitionLog] = {}
        self.sources: dict[str, EpochSource] = {}
        if self.stored is not None:
            return
        for _ in range(rng.choice((1, 1, 2, 2, 3, PARTITIONS_MAX))):
            self._spawn_source(None)
        self.clients = [self._spawn_client(f"c{n}") for n in range(rng.randint(1, 4))]

    def _spawn_source(self, at: Frontier | None) -> EpochSource:
        name = f"p{len(self.sources)}"
        source = EpochSource(self.world, name)
        source.scenario = self
        source.at = at
        if self.durable:
            self.logs[name] = PartitionLog(name, self.shape, at)
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
        if client.mode is Mode.WHOLE and rng.random() < 0.3:
            client.batches_max = rng.randint(2, 30)
            client.when_full = rng.choice(tuple(WhenFull))
        if self.world.faults.strikes(Fault.SLOW, 0.5):
            client.lag_ms = (20, 400)
        self.world.spawn(client)
        return client

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
        if self.stored is not None:
            return self.stored.actions()
        return [
            Action("publish", 60, self._publish),
            Action("progress", 40, self._progress),
            Action("misbehave", 3, self._misbehave),
            Action("come or go", 1, self._come_or_go),
            Action("abort", 1, self._abort),
            Action("close", 1, self._close),
            Action("take back", 1, self._take_back),
            Action("trim", 1, self._trim),
            Action("add a partition", 2, self._add_partition, Fault.SCALE),
        ]

    def _awake(self) -> list[EpochSource]:
        return [s for s in self.sources.values() if s.alive and not s.paused]

    def _pick(self) -> EpochSource | None:
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

    def _take_back(self) -> None:
        if source := self._pick():
            source.take_back()

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
            log = self.logs[self.world.rng.choice(list(self.logs))]
            log.trim(len(log.rows) - self.world.rng.randint(0, 40))

    def _add_partition(self) -> None:
        """Announce a partition: anywhere that is not complete, or beyond everything."""
        if len(self.sources) >= PARTITIONS_MAX:
            return
        if self.oracle.closed:
            return  # a closed stream takes no partition
        rng = self.world.rng
        at: Frontier = (self.shape.bottom,)
        if rng.random() < 0.3:
            for source in self.sources.values():
                at = leave_out(self.shape, at, source.last_upper)
                if source.last_lower:
                    at = join(self.shape, at, source.last_lower)
        else:
            open_times = sorted(t for t in self.oracle.published if self.oracle.open(t))
            over = [time for time in open_times if self.oracle.over_somewhere(time)]
            held = [time for lower in self.oracle.lowers.values() for time in lower]
            at = (over[-1] if over and rng.random() < 0.6 else rng.choice(open_times or held),)
        source = self._spawn_source(at)
        for client in self.clients:
            if client.alive:
                client.partition_added(source.name, at)

    # --- coming to rest ---

    def healed(self) -> None:
        self.closing = True
        for client in self.clients:
            client.wants = True
            client.batches_max = None
            client.lag_ms = None if client.lag_ms is None else (1, 10)

    def quiescent(self) -> bool:
        if self.stored is not None:
            return True
        return self.oracle.closed and all(
            client.subscriber is not None and client.subscriber.end in (End.CLOSED, End.REACHED)
            for client in self.clients
        )

    def unsettled(self) -> str:
        waiting = {client.name: repr(client.subscriber) for client in self.clients}
        return f"partitions {self.oracle.lowers}; subscribers {waiting}"

    def final(self) -> None:
        if self.stored is not None:
            self.stored.final()
        for client in self.clients:
            if client.chain is not None:
                self.world.reached["epochs whole"] += client.chain.whole


SCENARIO = EpochsScenario
