"""Shared groups under torture: members and leaders killed, frozen and cut off at random.

Members are real processes on a real catalog; each writes down what it was given and what it was
told (see ``shared_member``).  Faults overlap: while one member is frozen, the leader may be killed
and the connections of a third be cut, and on PostgreSQL those to the catalog as well.  In the end
the faults stop and every event is accounted for:

* each was delivered, and the group has nothing left to do;
* no ack was told twice: what is acked does not come again, but to a process that was frozen, or
  did not get to run, and does not know yet that it owns nothing (its ack is refused);
* who was told that its ack does not count was told the truth: the event counts for somebody else;
* who acked was told something, unless it was killed;
* events of one key were first delivered in their order.

*Crash replay* is measured at every leader that is killed: how long before its death the oldest ack
was made that its death undid (see ``replay``).
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

import headrace
import headrace.sync
from headrace.errors import HeadraceError
from headrace.groups.shared.admin import GroupInfo, Groups
from tests.torture.account import Finding
from tests.torture.child import Child, Failed
from tests.torture.ordeal import Deck, Server
from tests.torture.replay import Death, Fault, Line, measured, undone

TEXT = "$share/g/orders.>"
KEYS = 40
SEGMENTS = 6
MEMBERS = ("a", "b", "c", "d")
FROZEN_MAX = 2
FREEZE_S = (0.2, 6.0)
PAUSE_S = (0.05, 0.4)
FEED_S = 0.05
FEED_EVENTS = 5
READY_TIMEOUT_S = 120.0
LEADER_TIMEOUT_S = 10.0
SETTLE_TIMEOUT_S = 120.0
"""How long nothing may be acked while there is something to do."""
END_TIMEOUT_S = 60.0
POLL_S = 0.01
AT_WORK = 0.5
WORK_S = 1.2
"""Part of the leaders that are left to work for so long before they are killed; others have just
been elected, and their death undoes nothing."""

FAULTS = (
    *("kill", "kill leader"),
    *("freeze", "freeze", "freeze leader", "kill while frozen"),
    *("cut", "cut", "cut leader"),
)
SERVER_FAULTS = (*FAULTS, "terminate", "terminate", "cancel")


class Figures(msgspec.Struct, frozen=True):
    """What there was to account for."""

    events: int = 0
    deliveries: int = 0
    repeated: int = 0
    refused: int = 0
    """Acks that were told not to count."""
    late: int = 0
    """Deliveries after the ack, in processes that had been frozen; none of them counted."""
    leaders: int = 0
    leaders_killed: int = 0
    leaders_killed_at_work: int = 0
    """Those that had stored acks right before."""
    replayed: int = 0
    """Acks that the death of a leader undid."""
    replay_ms_p50: float = 0.0
    replay_ms_max: float = 0.0
    """How long before that death the oldest of them was made, over all deaths."""
    replay_ms_max_after: dict[str, float] = {}
    """The same for acks that another fault had held up before, by that fault."""


class Outcome(msgspec.Struct, frozen=True):
    """One ordeal and what came of it."""

    catalog: str
    faults: dict[str, int]
    figures: Figures
    findings: list[Finding]
    seconds: float


class Member:
    """A place for a member's process through all its incarnations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = -1
        self.child: Child | None = None
        self.frozen_until_s = 0.0
        self.doomed = False

    @property
    def instance(self) -> str:
        return f"{self.name}-{self.incarnation}"

    @property
    def running(self) -> Child:
        assert self.child is not None
        return self.child

    @property
    def awake(self) -> bool:
        """Whether something can be done to it: it has begun, and is not frozen."""
        return not self.frozen_until_s and "ready" in self.running.output()


class Ordeal:
    """One catalog under torture."""

    def __init__(
        self,
        catalog: str,
        url: str,
        folder: Path,
        faults: int,
        rng: random.Random,
        server: Server | None = None,
        progress: Callable[[int], None] = lambda faults: None,
    ) -> None:
        self._catalog = catalog
        self._url = url
        self._folder = folder
        self._wanted = faults
        self._rng = rng
        self._server = server
        self._progress = progress
        self._deck = Deck(SERVER_FAULTS if server else FAULTS, rng)
        self._members = [Member(name) for name in MEMBERS]
        self._faults: Counter[str] = Counter()
        self._findings: list[Finding] = []
        self._stop = threading.Event()
        self._fed: list[BaseException] = []
        self.published: list[str] = []
        self.frozen: set[str] = set()
        """Instances that were frozen."""
        self.killed: set[str] = set()
        self.leader_deaths: list[Death] = []
        self.disturbances: list[Fault] = []
        """What may keep a report from its leader, or from the catalog."""

    def run(self) -> Outcome:
        """Torture, then account."""
        began_s = time.monotonic()
        figures = Figures()
        feeder = threading.Thread(target=self._feed)
        try:
            asyncio.run(self._prepare())
            for member in self._members:
                self._start(member)
            feeder.start()
            with headrace.sync.open(self._url, housekeeping=False) as hr:
                groups = Groups(hr.client.log)
                self._torture(groups)
                self._stop.set()
                feeder.join()
                if self._fed:
                    raise Failed("feeder failed", repr(self._fed[0]))
                token = self._settle(groups)
            self._end_members()
            found, figures = self.account(self._lines())
            self._findings += found
            figures = msgspec.structs.replace(figures, leaders=token)
        except Failed as failed:
            self._findings.append(failed.finding)
        finally:
            self._stop.set()
            if feeder.ident is not None:
                feeder.join()
            for member in self._members:
                if member.child is not None and member.child.status() is None:
                    member.child.kill()
        seconds = time.monotonic() - began_s
        return Outcome(self._catalog, dict(self._faults), figures, self._findings, seconds)

    async def _prepare(self) -> None:
        async with headrace.open(self._url, housekeeping=False) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=SEGMENTS)

    def _start(self, member: Member) -> None:
        member.incarnation += 1
        member.frozen_until_s, member.doomed = 0.0, False
        journal = self._folder / f"{member.instance}.journal"
        journal.touch()
        member.child = Child(
            self._folder,
            member.instance,
            "shared_member",
            [self._url, member.name, str(journal), TEXT],
        )

    def _feed(self) -> None:
        """Events at a steady rate; what is in doubt is sent again under its number."""
        number = 0
        try:
            with headrace.sync.open(self._url, housekeeping=False) as hr:
                while not self._stop.wait(FEED_S):
                    values = [f"{n % KEYS}-{n}" for n in range(number, number + FEED_EVENTS)]
                    number += FEED_EVENTS
                    self._append(hr, values, number)
                    self.published += values
        except BaseException as error:
            self._fed.append(error)

    def _append(self, hr: headrace.sync.Headrace, values: list[str], sequence: int) -> None:
        events = [
            headrace.Event(subject="orders.n", value=value.encode(), key=value.partition("-")[0])
            for value in values
        ]
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            try:
                hr.append("orders", events, producer="feeder", sequence=sequence)
            except HeadraceError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(POLL_S)
            else:
                return

    # -- faults -------------------------------------------------------------------------

    def _torture(self, groups: Groups) -> None:
        ready_s = time.monotonic() + READY_TIMEOUT_S
        while sum(self._faults.values()) < self._wanted:
            self._check()
            self._wake()
            if self._strike(groups):
                ready_s = time.monotonic() + READY_TIMEOUT_S
                self._progress(sum(self._faults.values()))
            elif time.monotonic() > ready_s:
                raise Failed("stuck", "no member has begun for a long time")
            # How long a fault lasts is part of it; this is no waiting for luck.
            self._stop.wait(self._rng.uniform(*PAUSE_S))

    def _strike(self, groups: Groups) -> bool:
        awake = [member for member in self._members if member.awake]
        if not awake:
            return False
        kind = self._deck.draw()
        if kind in ("terminate", "cancel"):
            assert self._server is not None
            began_ns = time.monotonic_ns()
            if not getattr(self._server, kind)(self._rng):
                return False
            self.disturbances.append(Fault(kind, began_ns, time.monotonic_ns()))
        else:
            leader = self._leader(groups) if "leader" in kind else None
            if kind == "kill leader":
                leader = self._await_leader(groups)
                if self._rng.random() < AT_WORK and not self._stop.wait(WORK_S):
                    leader = self._leader(groups)
            awake = [member for member in self._members if member.awake]
            if not awake:
                return False
            victim = leader if leader in awake else self._rng.choice(awake)
            assert victim is not None
            if victim is not leader:
                kind = kind.removesuffix(" leader")
            kind = self._hurt(kind, victim)
        self._faults[kind] += 1
        return True

    def _await_leader(self, groups: Groups) -> Member | None:
        """One that leads and is awake; after the last one's death it takes a lease to have one."""
        deadline_s = time.monotonic() + LEADER_TIMEOUT_S
        while time.monotonic() < deadline_s:
            self._wake()
            leader = self._leader(groups)
            if leader is not None and leader.awake:
                return leader
            time.sleep(POLL_S)
        return None

    def _leader(self, groups: Groups) -> Member | None:
        """Who leads; the name of a peer holds the number of its process."""
        try:
            name = groups.get("g").leader or ""
        except HeadraceError:
            return None
        found = re.search(r"-(\d+)-[0-9a-f]+$", name)
        pid = int(found[1]) if found else 0
        return next((member for member in self._members if member.running.pid == pid), None)

    def _hurt(self, kind: str, victim: Member) -> str:
        frozen = [member for member in self._members if member.frozen_until_s]
        if "fr" in kind and len(frozen) >= FROZEN_MAX:
            kind = "kill leader" if "leader" in kind else "kill"
        if kind.startswith("kill") and kind != "kill while frozen":
            if kind == "kill leader":
                asleep = frozenset(member.instance for member in frozen)
                self.leader_deaths.append(Death(time.monotonic_ns(), victim.instance, asleep))
            self._kill(victim)
            self._start(victim)
        elif "fr" in kind:
            self._freeze(victim, doomed=kind == "kill while frozen")
        else:
            now_ns = time.monotonic_ns()
            self.disturbances.append(Fault("cut", now_ns, now_ns, victim.instance))
            victim.running.stdin.write(b"cut\n")
            victim.running.stdin.flush()
        return kind

    def _kill(self, victim: Member) -> None:
        victim.running.kill()
        self.killed.add(victim.instance)

    def _freeze(self, victim: Member, *, doomed: bool) -> None:
        """Stop a member; it may hold a lock of the catalog, so the end comes from elsewhere."""
        wait_s = self._rng.uniform(*FREEZE_S)
        victim.doomed = doomed
        victim.frozen_until_s = time.monotonic() + wait_s
        self.frozen.add(victim.instance)
        now_ns = time.monotonic_ns()
        # Whoever is frozen may hold a lock that others wait for.
        self.disturbances.append(Fault("freeze", now_ns, now_ns + int(wait_s * 1e9)))
        victim.running.signal(signal.SIGSTOP)
        last = signal.SIGKILL if doomed else signal.SIGCONT
        threading.Timer(wait_s, victim.running.signal, [last]).start()

    def _wake(self) -> None:
        """Take those back whose time has come."""
        for member in self._members:
            if member.frozen_until_s and time.monotonic() > member.frozen_until_s + 0.1:
                member.frozen_until_s = 0.0
                if member.doomed:
                    self._kill(member)
                    self._start(member)

    def _check(self) -> None:
        for member in self._members:
            status = member.running.status()
            if status is not None and not member.doomed:
                raise Failed(*msgspec.structs.astuple(member.running.failure(status)))
        if self._fed:
            raise Failed("feeder failed", repr(self._fed[0]))

    # -- the end ------------------------------------------------------------------------

    def _settle(self, groups: Groups) -> int:
        """Wait until nothing is left to do; as long as something is done there is patience."""
        before, deadline_s = -1, 0.0
        while True:
            self._wake()
            self._check()
            info = groups.get("g")
            frozen = any(member.frozen_until_s for member in self._members)
            if info.lag_events == 0 and not frozen:
                return info.leader_token
            if info.lag_events != before:
                before, deadline_s = info.lag_events, time.monotonic() + SETTLE_TIMEOUT_S
            if time.monotonic() > deadline_s:
                raise Failed("stuck", self._stuck(info))
            time.sleep(POLL_S * 10)

    def _stuck(self, info: GroupInfo) -> str:
        left = {u.unit: (u.owner, u.token, u.lag_events) for u in info.units if u.lag_events}
        said = [f"{line.member}: {line.what}" for line in self._lines() if line.mark in "?~"]
        return (
            f"{info.lag_events} events are left in {left}, led by {info.leader}, "
            f"members {[(m.member, m.units) for m in info.members]}, said {said[-5:]}"
        )

    def _end_members(self) -> None:
        for member in self._members:
            member.running.stdin.close()
        for member in self._members:
            status = member.running.wait(END_TIMEOUT_S)
            if status != 0:
                raise Failed(*msgspec.structs.astuple(member.running.failure(status)))

    # -- accounting ---------------------------------------------------------------------

    def _lines(self) -> list[Line]:
        found = []
        for path in sorted(self._folder.glob("*.journal")):
            for line in path.read_text().splitlines():
                mark, at, what = (*line.split(" ", 2), "", "")[:3]
                if what:
                    found.append(Line(int(at), path.stem, mark, what))
        return sorted(found)

    def account(self, lines: Iterable[Line]) -> tuple[list[Finding], Figures]:
        """Hold what members wrote down against what was published."""
        lines = list(lines)
        wrong: list[Finding] = []
        slow = self.frozen | {line.member for line in lines if line.mark == "z"}
        given: dict[str, list[Line]] = {}
        acked: dict[str, Line] = {}
        refused: dict[str, list[Line]] = {}
        unsettled: set[str] = set()
        first: dict[str, list[int]] = {}
        late = 0
        for line in lines:
            match line.mark:
                case "+":
                    if line.what in acked:
                        late += 1
                        if line.member not in slow:
                            by = acked[line.what].member
                            wrong.append(
                                Finding("repeat", f"{line.what}: {line.member} after {by} acked it")
                            )
                    elif line.what not in given:
                        key, _, number = line.what.partition("-")
                        first.setdefault(key, []).append(int(number))
                    given.setdefault(line.what, []).append(line)
                case "!":
                    if line.what in acked:
                        by = f"{acked[line.what].member} and {line.member}"
                        wrong.append(Finding("acked twice", f"{line.what}: {by}"))
                    acked[line.what] = line
                case "x":
                    refused.setdefault(line.what, []).append(line)
                case "~":
                    unsettled.add(line.member)
                case "?":
                    wrong.append(Finding("member failed", f"{line.member}: {line.what}"))
        missing = sorted(set(self.published) - set(given))
        if missing:
            wrong.append(Finding("missing", f"{len(missing)} never came: {missing[:5]}"))
        for key, numbers in first.items():
            if numbers != sorted(numbers):
                wrong.append(Finding("order", f"key {key}: {numbers}"))
        wrong += self._check_answers(given, acked, refused, unsettled)
        deliveries = sum(map(len, given.values()))
        lost = undone(self.leader_deaths, self.disturbances, given, acked, refused)
        oldest = [0.0] * len(self.leader_deaths)
        after: dict[str, float] = {}
        for one in lost:
            if one.fault:
                after[one.fault] = max(one.age_ms, after.get(one.fault, 0.0))
            else:
                oldest[one.death] = max(one.age_ms, oldest[one.death])
        ages = sorted(oldest)
        return wrong, Figures(
            events=len(self.published),
            deliveries=deliveries,
            repeated=deliveries - len(given),
            refused=sum(map(len, refused.values())),
            late=late,
            leaders_killed=len(self.leader_deaths),
            leaders_killed_at_work=measured(self.leader_deaths, acked),
            replayed=sum(not one.fault for one in lost),
            replay_ms_p50=ages[len(ages) // 2] if ages else 0.0,
            replay_ms_max=ages[-1] if ages else 0.0,
            replay_ms_max_after=after,
        )

    def _check_answers(
        self,
        given: dict[str, list[Line]],
        acked: dict[str, Line],
        refused: dict[str, list[Line]],
        unsettled: set[str],
    ) -> list[Finding]:
        """Everything that is not told to be acked was in the hands of somebody who was killed."""
        wrong = []
        for what, lines in given.items():
            if what in acked:
                continue
            holders = [line.member for line in lines]
            told = Counter(line.member for line in refused.get(what, ()))
            open_at = [name for name, count in Counter(holders).items() if count > told[name]]
            if not open_at:
                wrong.append(Finding("refused", f"{what} counts, and {holders} were told no"))
            elif not any(name in self.killed or name in unsettled for name in open_at):
                wrong.append(Finding("unanswered", f"{what}: {open_at} were told nothing"))
        return wrong
