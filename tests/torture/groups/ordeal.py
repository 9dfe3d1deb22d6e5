"""The ordeal: workers on one catalog, killed and frozen, while the groups change under them.

Every choice comes from one random generator; what the operating system makes of it does not, so
a seed gives the same plan and not the same run.  A worker meets its fault only after it has got
deliveries, so that there is something to lose, and every wait is for a condition, with a limit
after which it is a finding that nothing moves.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.torture.account import Finding
from tests.torture.child import Child, Failed
from tests.torture.groups.admin import Admin
from tests.torture.groups.journal import Published, read_journal
from tests.torture.groups.judge import Totals, judge
from tests.torture.ordeal import Deck

WORKERS = 5
PARTITIONS = 8
STATIC_MEMBERS = ("s0", "s1", "s2")
ELASTIC_MEMBERS = ("e0", "e1", "e2", "e3")
LEASE_MS = 1_500
LEASE_BUSY_MS = 6_000
"""On a machine with much else to do, where nobody could keep a shorter one."""
BUSY_LOAD = 3.0
EVENTS_PER_S = 150
FROZEN_MAX = 2
MOVE_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
POLL_S = 0.01
WAKING_S = 0.1
DUE_BYTES_MAX = 40_000
"""How much a worker may have written to its journal before its next fault."""

FAULTS = ("kill",) * 4 + ("freeze",) * 4 + ("kill while frozen", "kill filler")
CHANGES = ("members", "members", "mapping", "step down static", "step down elastic", "none", "none")


class Outcome(msgspec.Struct, frozen=True):
    """One ordeal and what came of it."""

    catalog: str
    faults: dict[str, int]
    changes: dict[str, int]
    totals: Totals
    findings: list[Finding]
    seconds: float


class Worker:
    """A place for a worker process through all its incarnations."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.incarnation = -1
        self.child: Child | None = None
        self.journal = Path()
        self.frozen_until = 0.0
        self.doomed = False
        self.due_bytes = 0

    @property
    def instance(self) -> str:
        return f"w{self.number}-{self.incarnation}"

    @property
    def running(self) -> Child:
        assert self.child is not None
        return self.child

    @property
    def roles(self) -> list[str]:
        """The members that it is an instance of; some are instances of one member."""
        return [
            f"static:{STATIC_MEMBERS[self.number % len(STATIC_MEMBERS)]}",
            f"elastic:{ELASTIC_MEMBERS[self.number % len(ELASTIC_MEMBERS)]}",
        ]

    def seen_bytes(self) -> int:
        return self.journal.stat().st_size if self.journal.exists() else 0


class Ordeal:
    """One catalog under torture."""

    def __init__(
        self,
        catalog: str,
        url: str,
        folder: Path,
        faults: int,
        rng: random.Random,
        progress: Callable[[int], None] = lambda faults: None,
        workers: int = WORKERS,
    ) -> None:
        self._catalog = catalog
        self._url = url
        self._folder = folder
        self._store = folder / "store"
        self._wanted = faults
        busy = os.getloadavg()[0] > BUSY_LOAD * (os.cpu_count() or 1)
        self._lease_ms = LEASE_BUSY_MS if busy else LEASE_MS
        self._rng = rng
        self._progress = progress
        self._workers = [Worker(number) for number in range(workers)]
        self._kinds = Deck(FAULTS, rng)
        self._changes = Deck(CHANGES, rng)
        self._faults: Counter[str] = Counter()
        self._changed: Counter[str] = Counter()
        self._findings: list[Finding] = []
        self._feeder: Child | None = None
        self._filler: Child | None = None
        self._fillers = 0

    def run(self) -> Outcome:
        began = time.monotonic()
        totals = Totals()
        try:
            with Admin(self._url, self._store, PARTITIONS) as admin:
                admin.create(STATIC_MEMBERS, ELASTIC_MEMBERS[:3])
                self._start_all()
                self._torture(admin)
                self._finish(admin)
                totals = self._judge(admin)
        except Failed as failed:
            self._findings.append(failed.finding)
        finally:
            self._end_all()
        return Outcome(
            catalog=self._catalog,
            faults=dict(self._faults),
            changes=dict(self._changed),
            totals=totals,
            findings=self._findings,
            seconds=time.monotonic() - began,
        )

    # -- processes ----------------------------------------------------------------------

    def _start_all(self) -> None:
        journal = str(self._folder / "feeder.journal")
        seed = str(self._rng.random())
        self._feeder = self._child("feeder", "feeder", journal, seed, str(EVENTS_PER_S))
        self._start_filler()
        for worker in self._workers:
            self._start(worker)

    def _child(self, name: str, module: str, *arguments: str) -> Child:
        shared = [self._url, str(self._store)]
        return Child(self._folder, name, f"groups.{module}", [*shared, *arguments])

    def _start_filler(self) -> None:
        self._fillers += 1
        self._filler = self._child(f"filler-{self._fillers}", "filler", "work", "elastic")

    def _start(self, worker: Worker) -> None:
        worker.incarnation += 1
        worker.journal = self._folder / f"{worker.instance}.journal"
        worker.frozen_until, worker.doomed = 0.0, False
        worker.due_bytes = self._rng.randrange(DUE_BYTES_MAX)
        worker.child = self._child(
            worker.instance,
            "worker",
            str(worker.journal),
            str(self._rng.random()),
            str(self._lease_ms),
            *worker.roles,
        )

    def _check_alive(self) -> None:
        children = [child for child in (self._feeder, self._filler) if child is not None]
        children += [worker.running for worker in self._workers if not worker.frozen_until]
        for child in children:
            status = child.status()
            if status is not None:
                raise Failed(*msgspec.structs.astuple(child.failure(status)))

    # -- faults -------------------------------------------------------------------------

    def _torture(self, admin: Admin) -> None:
        moved = time.monotonic()
        while sum(self._faults.values()) < self._wanted:
            self._check_alive()
            self._wake()
            victim = self._due()
            if victim is None:
                if time.monotonic() - moved > MOVE_TIMEOUT_S:
                    raise Failed("stuck", "no worker has got anything for a long time")
                time.sleep(POLL_S)
                continue
            moved = time.monotonic()
            self._hurt(victim)
            self._progress(sum(self._faults.values()))
            change = self._changes.draw()
            if change != "none" and admin.change(change, self._rng, ELASTIC_MEMBERS):
                self._changed[change] += 1

    def _due(self) -> Worker | None:
        """A worker that is awake and has seen enough for something to go wrong."""
        awake = [worker for worker in self._workers if not worker.frozen_until]
        ready = [worker for worker in awake if worker.seen_bytes() > worker.due_bytes]
        # A standby sees nothing until its turn comes; it may be hit as well.
        idle = [worker for worker in awake if worker not in ready]
        if ready and idle and self._rng.random() < 0.15:
            return self._rng.choice(idle)
        return self._rng.choice(ready) if ready else None

    def _hurt(self, victim: Worker) -> None:
        kind = self._kinds.draw()
        frozen = sum(1 for worker in self._workers if worker.frozen_until)
        if "froze" in kind or "freeze" in kind:
            if frozen >= FROZEN_MAX:
                kind = "kill"
            else:
                self._freeze(victim, doomed=kind != "freeze")
        if kind == "kill":
            victim.running.kill()
            self._start(victim)
        elif kind == "kill filler":
            assert self._filler is not None
            self._filler.kill()
            self._start_filler()
        self._faults[kind] += 1

    def _freeze(self, victim: Worker, *, doomed: bool) -> None:
        """Stop a worker for longer than its lease.

        It may hold a lock of the catalog, and then nobody gets on, this thread included: so the
        end of it comes from a thread of its own.
        """
        wait_s = self._lease_ms / 1000 * self._rng.uniform(1.05, 2.0)
        victim.doomed = doomed
        victim.frozen_until = time.monotonic() + wait_s
        victim.running.signal(signal.SIGSTOP)
        last = signal.SIGKILL if doomed else signal.SIGCONT
        threading.Timer(wait_s, victim.running.signal, [last]).start()

    def _wake(self) -> None:
        """Take those back whose time has come."""
        for worker in self._workers:
            if worker.frozen_until and time.monotonic() > worker.frozen_until + WAKING_S:
                worker.frozen_until = 0.0
                if worker.doomed:
                    worker.running.kill()
                    self._start(worker)
                else:
                    worker.due_bytes = worker.seen_bytes() + self._rng.randrange(DUE_BYTES_MAX)

    # -- the end ------------------------------------------------------------------------

    def _finish(self, admin: Admin) -> None:
        while any(worker.frozen_until for worker in self._workers):
            self._wake()
            time.sleep(POLL_S)
        assert self._feeder is not None
        self._feeder.stdin.close()
        self._end("the feeder", self._feeder)
        self._feeder = None
        present = [role.split(":")[1] for worker in self._workers for role in worker.roles]
        admin.settle([name for name in ELASTIC_MEMBERS if name in present])
        before, deadline = 0, 0.0
        while left := admin.unacked():
            self._check_alive()
            if sum(left.values()) != before:
                before, deadline = sum(left.values()), time.monotonic() + DRAIN_TIMEOUT_S
            if time.monotonic() > deadline:
                raise Failed("stuck", f"nobody acks what is left: {left}; {admin.explain()}")
            time.sleep(POLL_S * 10)
        for worker in self._workers:
            worker.running.stdin.close()
        for worker in self._workers:
            self._end(worker.instance, worker.running)

    def _end(self, name: str, child: Child) -> None:
        status = child.wait(END_TIMEOUT_S)
        if status != 0:
            raise Failed(*msgspec.structs.astuple(child.failure(status)))

    def _judge(self, admin: Admin) -> Totals:
        published = [
            event
            for record in read_journal(self._folder / "feeder.journal")
            if isinstance(record, Published)
            for event in record.events
        ]
        journals = {
            path.stem: read_journal(path) for path in sorted(self._folder.glob("w*.journal"))
        }
        outputs = {group: admin.outputs(group) for group in ("static", "elastic")}
        findings, totals = judge(published, journals, ("static", "elastic"), outputs)
        self._findings += findings
        return totals

    def _end_all(self) -> None:
        children: list[Child | None] = [self._feeder, self._filler]
        children += [worker.child for worker in self._workers]
        for child in children:
            if child is not None and child.status() is None:
                child.kill()
