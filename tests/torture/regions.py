"""Torture of regions: a group that moves between two of them while programs are killed and frozen.

Both regions publish all the time.  Every turn a program of a region (its agent, its consumer, or
what fills the work queue of an elastic group) may be killed, or frozen past its lease; then the
group moves: by a switch, or because its region is gone, every program of it killed and its catalog
out of reach, and back after a while.  In the end every event is accounted for, and ``region check
--deep`` must agree.  A group that is replicated by snapshot may repeat what its new home could not
know, at a switch as after a loss.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
from rich.console import Console
from rich.table import Table

from headrace.catalog import Tx, streams
from headrace.catalog.streams import StreamConfig
from headrace.errors import HeadraceError, SwitchError
from headrace.groups.partitioned.lifecycle import create_elastic, create_static
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress import AckedRanges, Progress, store
from headrace.groups.readers.admin import create as create_readers
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.shared import properties
from headrace.groups.shared.properties import GroupProperties
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.regions import enabling, kinds, losing, moving
from headrace.regions.checking import check
from headrace.regions.linking import link, name_region
from headrace.regions.records import AGENT_LEASE, get_group
from headrace.regions.runtime.neighbours import Neighbours
from tests.torture import region_account
from tests.torture.region_account import Counted, Line, Loss
from tests.torture.region_worker import GROUP, PENDING_MAX, PIN_TTL_MS

Kind = Literal["static", "shared", "elastic", "reader"]
Mode = Literal["origin", "snapshot"]
REGIONS = ("eu", "us")
KEYS = 7
WAIT_S = 120.0
"""How long a program may get nowhere before that is a finding."""
BACKLOG_MAX = 1500
"""Nobody publishes while so many events wait: both regions give more than one group can take."""


class Outcome(msgspec.Struct, frozen=True):
    """One ordeal."""

    kind: str
    switches: int
    losses: int
    faults: dict[str, int]
    counted: Counted
    switch_s: tuple[float, ...]
    seconds: float


def wait(condition: Callable[[], bool], what: str, pause_s: float = 0.05) -> None:
    """Wait for a condition; a program that never gets there is a finding of its own."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {WAIT_S:g} s in vain until {what}")
        time.sleep(pause_s)


def without_password(url: str) -> str:
    """An address as a link may store it; libpq takes the password from the environment."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    os.environ["PGPASSWORD"] = unquote(parts.password)
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{host}"))


class Side:
    """A region of the ordeal, with its programs."""

    def __init__(self, name: str, folder: Path, kind: Kind, url: str | None = None) -> None:
        self.name, self.kind = name, kind
        self.path = folder / name
        self.url = url or str(self.path)
        self.store = None if url is None else str(folder / f"{name}-store")
        self.journal = folder / f"{name}.journal"
        self.tail = region_account.Tail(self.journal)
        self.log: Log = open_log(self.url, self.store)
        name_region(self.log, name)
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.programs_wanted = ("agent", "consumer", *(["filler"] if kind == "elastic" else []))
        self.errors = (folder / f"{name}.errors").open("ab")

    def start(self, what: str) -> None:
        command = [sys.executable, "-m", "headrace", "--catalog", self.url, "region", "run"]
        if what != "agent":
            module = f"tests.torture.region_{'worker' if what == 'consumer' else 'filler'}"
            command = [sys.executable, "-m", module, self.url, self.kind, str(self.journal)]
        self.programs[what] = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self.errors
        )

    def kill(self, what: str) -> None:
        process = self.programs.pop(what)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def has_agent(self) -> bool:
        return self.log.catalog.leases.get(AGENT_LEASE) is not None

    def knows(self, key: str) -> bool:
        """Whether a group is here, and known to be replicated."""

        def look(tx: Tx) -> bool:
            found = get_group(tx, key)
            return found is not None and kinds.exists(tx, found)

        return self.log.catalog.read(look)

    def close(self) -> None:
        for what in list(self.programs):
            self.programs[what].send_signal(signal.SIGCONT)
            self.kill(what)
        self.log.catalog.close()
        self.errors.close()


class Ordeal:
    """Two regions, one group, and what happens to them."""

    def __init__(
        self,
        kind: Kind,
        folder: Path,
        rng: random.Random,
        urls: Mapping[str, str],
        mode: Mode = "origin",
    ) -> None:
        self.kind, self.rng, self.mode = kind, rng, mode
        self._load = random.Random(rng.random())
        self.sides = {name: Side(name, folder, kind, urls.get(name)) for name in REGIONS}
        self.key = {"shared": f"{GROUP}:orders.>", "reader": f"reader/{GROUP}"}.get(
            kind, f"orders.{GROUP}"
        )
        # An elastic group has a place of its own in the source, beside that in its work queue.
        self.reader = GroupName("orders", GROUP).consumed if kind == "elastic" else self.key
        self.near = Neighbours()
        self.home = "eu"
        self.published: list[str] = []
        self.losses: list[Loss] = []
        self.faults: Counter[str] = Counter()
        self.switch_s: list[float] = []
        self._numbers: Counter[tuple[str, int]] = Counter()
        self._stop = threading.Event()
        self._away: set[str] = set()
        self._publishing = threading.Lock()

    # --- setting up --------------------------------------------------------------------

    def begin(self) -> None:
        eu, us = (self.sides[name] for name in REGIONS)
        eu.log.create_stream("orders", StreamConfig(subjects=("orders.>",), partitions=4))
        here, there = without_password(eu.url), without_password(us.url)
        link(eu.log, "orders", "us", here=here, catalog=there, store=us.store)
        if self.kind == "static":
            create_static(eu.log, "orders", GROUP, max_members=4, members=["m1"])
        elif self.kind == "reader":
            create_readers(
                *(eu.log, GROUP),
                given=["orders"],
                start="earliest",
                end=None,
                filter=None,
                config=GroupConfig(),
            )
        elif self.kind == "elastic":
            create_elastic(
                eu.log,
                *("orders", GROUP),
                max_members=4,
                filter="orders.*",
                wildcards=[1],
                members=["m1"],
            )
        else:
            eu.log.catalog.write(
                lambda tx: properties.declare(
                    tx,
                    GroupProperties(group=GROUP, filter="orders.>", start="earliest"),
                    "earliest",
                    {},
                    exist_ok=False,
                ),
                locks=properties.declare_locks(self.key),
            )
        enabling.enable(eu.log, self.key, self.near, home="eu", mode=self.mode)
        for side in self.sides.values():
            side.start("agent")
        wait(lambda: all(side.has_agent() for side in self.sides.values()), "agents run")
        # A consumer that came first would make a group of its own in the other region, which is
        # not joined unasked.
        wait(lambda: us.knows(self.key), "us knows of the group")
        for side in self.sides.values():
            for what in side.programs_wanted[1:]:
                side.start(what)

    def publish(self) -> None:
        """Both regions, all the time."""
        while not self._stop.is_set():
            acked = sum(side.tail.acked() for side in self.sides.values())
            with self._publishing:
                for name in REGIONS:
                    if name not in self._away and len(self.published) - acked < BACKLOG_MAX:
                        self._publish(name, self._load.randrange(1, 12))
            self._stop.wait(0.02)

    def _publish(self, name: str, count: int) -> None:
        given, values = [], []
        for _ in range(count):
            key = self._load.randrange(KEYS)
            value = f"{name}-{key}-{self._numbers[name, key]}"
            self._numbers[name, key] += 1
            given.append(Event(subject=f"orders.{key}", key=str(key), value=value.encode()))
            values.append(value)
        self.sides[name].log.append("orders", given)
        self.published += values

    # --- what happens ------------------------------------------------------------------

    def fault(self) -> None:
        """A program of one region is killed and started again, or frozen for a while."""
        side = self.sides[self.rng.choice(REGIONS)]
        what = self.rng.choice(side.programs_wanted)
        if self.rng.random() < 0.5:
            side.kill(what)
            side.start(what)
            self.faults[f"{what} killed"] += 1
        else:
            process = side.programs[what]
            process.send_signal(signal.SIGSTOP)
            threading.Timer(
                PIN_TTL_MS / 1000 * 1.5, lambda: process.send_signal(signal.SIGCONT)
            ).start()
            self.faults[f"{what} frozen"] += 1

    def switch(self) -> None:
        """Move the group; what keeps it from moving passes."""
        source, target = self.home, next(name for name in REGIONS if name != self.home)
        began, known, began_ns = time.monotonic(), frozenset[str](), time.monotonic_ns()
        if self.mode == "snapshot":
            known = frozenset(self._known(self.sides[target]))
        while True:
            try:
                log = self.sides[source].log
                moving.switch(log, self.key, target, self.near, timeout_s=WAIT_S)
                break
            except SwitchError as error:
                if time.monotonic() - began > WAIT_S:
                    raise AssertionError(f"the group never moves: {error}") from error
                time.sleep(0.1)
        self.switch_s.append(time.monotonic() - began)
        self.home = target
        if self.mode == "snapshot":  # it moves as far as the last snapshot that it has passed
            self.losses.append(Loss(began_ns, target, known, time.monotonic_ns()))

    def lose(self) -> None:
        """The home burns down; the other region goes on, and later it is back."""
        lost, left = self.home, next(name for name in REGIONS if name != self.home)
        side, survivor = self.sides[lost], self.sides[left]
        with self._publishing:
            self._away.add(lost)
        for what in list(side.programs):
            side.kill(what)
        side.log.catalog.close()
        hidden = side.path.with_name(f"{lost}-hidden")
        side.path.rename(hidden)
        self.near.close()
        # Before the survivor may begin: what it is given from the first moment on is judged.
        known = frozenset(self._known(survivor))
        self.losses.append(Loss(time.monotonic_ns(), left, known))
        losing.fail_over(survivor.log, lost, self.near, force=True)
        self.home = left
        self._progress(left, 20)
        hidden.rename(side.path)
        side.log = open_log(str(side.path), None)
        losing.set_state(survivor.log, lost, "active")
        for what in side.programs_wanted:
            side.start(what)
        with self._publishing:
            self._away.discard(lost)
        wait(lambda: self._knows_home(side), f"{lost} knows that it is not the home")

    def _knows_home(self, side: Side) -> bool:
        found = side.log.catalog.read(lambda tx: get_group(tx, self.key))
        return found is not None and found.home == self.home and side.has_agent()

    def _known(self, side: Side) -> set[str]:
        """What counts as acked in a region."""
        found = self._acked(side)
        return {
            row["value"].decode()
            for batch in side.log.read("orders")
            for row in batch.select(["segment", "offset", "value"]).to_pylist()
            if row["offset"] in found[row["segment"]]
        }

    def _acked(self, side: Side) -> dict[int, AckedRanges]:
        def look(tx: Tx) -> dict[int, AckedRanges]:
            return {
                s.number: (store.load(tx, self.reader, s.id) or Progress()).acked()
                for s in streams.require(tx, "orders").segments
            }

        return side.log.catalog.read(look, snapshot=True)

    def _unacked(self, side: Side) -> int:
        """How many of the events that were published anywhere do not count as acked there."""
        if self.mode == "snapshot":  # there are markers among the offsets
            return len(set(self.published) - self._known(side))
        acked = sum(each.floor + each.acked_above_floor for each in self._acked(side).values())
        return len(self.published) - acked

    def _progress(self, region: str, more: int) -> None:
        """Wait until a region's consumer has acked something."""
        tail = region_account.Tail(self.sides[region].journal)
        before = tail.acked()
        wait(lambda: tail.acked() >= before + more, f"the consumer in {region} goes on")

    # --- the end -----------------------------------------------------------------------

    def finish(self) -> list[str]:
        """Wait until everything is everywhere and acked; what does not agree."""
        self._stop.set()

        def left() -> dict[str, int]:
            return {name: self._unacked(side) for name, side in self.sides.items()}

        now, since = left(), time.monotonic()
        while any(now.values()):
            before, now = now, left()
            if now != before:
                since = time.monotonic()
            elif time.monotonic() - since > WAIT_S:
                return [f"lost: nothing more is acked for {WAIT_S:g} s; unacked are {now}"]
            time.sleep(0.2)
        report = check(self.sides["eu"].log, "orders", self.near, deep=True)
        return [] if report.agrees else [f"regions differ: {report.differences}"]

    def lines(self) -> list[Line]:
        return [
            line
            for name, side in self.sides.items()
            for line in region_account.read(side.journal, name)
        ]

    def close(self) -> None:
        self._stop.set()
        self.near.close()
        for side in self.sides.values():
            side.close()


def torture_regions(
    kind: Kind,
    moves: int,
    seed: int,
    folder: Path,
    *,
    mode: Mode = "origin",
    loss_part: float = 0.0,
    urls: Mapping[str, str] | None = None,
) -> Outcome:
    """Move a group ``moves`` times, a part of them by losses; files stay in ``folder``.

    ``urls`` are the catalogs of the regions, if they are no files; those cannot be lost.
    """
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    ordeal = Ordeal(kind, folder, random.Random(f"{seed} {kind}"), urls or {}, mode)
    findings: list[str] = []
    try:
        ordeal.begin()
        publisher = threading.Thread(target=ordeal.publish)
        publisher.start()
        try:
            for turn in range(moves):
                ordeal._progress(ordeal.home, 20)
                if turn % 2:
                    ordeal.fault()
                if ordeal.rng.random() < loss_part:
                    ordeal.lose()
                else:
                    ordeal.switch()
            ordeal._progress(ordeal.home, 20)
        except (AssertionError, HeadraceError) as error:
            findings.append(f"stuck: {error}")
        finally:
            ordeal._stop.set()
            publisher.join()
        findings += ordeal.finish()
    finally:
        ordeal.close()
    deaths = sum(n for what, n in ordeal.faults.items() if what.startswith("consumer"))
    lost = sum(loss.acked_until_ns == 0 for loss in ordeal.losses)
    in_doubt = PENDING_MAX * (deaths + lost + 2)
    counted = region_account.judge(ordeal.published, ordeal.lines(), ordeal.losses, in_doubt)
    counted = msgspec.structs.replace(counted, findings=(*findings, *counted.findings))
    return Outcome(
        kind=kind if mode == "origin" else f"{kind} by {mode}",
        switches=len(ordeal.switch_s),
        losses=lost,
        faults=dict(ordeal.faults),
        counted=counted,
        switch_s=tuple(ordeal.switch_s),
        seconds=time.monotonic() - began,
    )


def torture_all_regions(moves: int, seed: int, folder: Path) -> tuple[Outcome, ...]:
    """Groups of each kind, in each mode that it has, by switches alone and a third of losses."""
    kinds: tuple[tuple[Kind, Mode], ...] = (
        ("static", "origin"),
        ("shared", "origin"),
        ("elastic", "origin"),
        ("reader", "origin"),
        ("static", "snapshot"),
        ("shared", "snapshot"),
    )
    return tuple(
        torture_regions(
            kind, moves, seed, folder / f"regions-{kind}-{mode}-{part}", mode=mode, loss_part=part
        )
        for kind, mode in kinds
        for part in (0.0, 1 / 3)
    )


def show(console: Console, outcomes: Sequence[Outcome]) -> None:
    """The summary, for people."""
    if not outcomes:
        return
    table = Table(
        *("regions", "switches", "losses", "faults", "events", "in doubt", "again"),
        *("switch s p50", "seconds"),
    )
    for each in outcomes:
        took = sorted(each.switch_s) or [0.0]
        counted = each.counted
        row = (each.switches, each.losses, sum(each.faults.values()), counted.published)
        table.add_row(
            each.kind,
            *(f"{n:,}" for n in (*row, counted.in_doubt, counted.again)),
            f"{took[len(took) // 2]:.2f}",
            f"{each.seconds:.0f}",
        )
    console.print(table)
    for each in outcomes:
        for finding in each.counted.findings:
            console.print(f"{each.kind}: {finding}", style="red", soft_wrap=True, markup=False)
