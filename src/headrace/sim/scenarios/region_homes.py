"""Homes of regions: they are lost, given up and return, and members begin only where they may.

Every region has a catalog, an agent and members, which crash, stand still and are cut off one by
one, or all at once when a region is lost.  A person moves the group, or makes a survivor its home
while the home does not answer.  A member that begins after its region was given up must not take
the region for the home, however long its catalog says so; save where the region was only cut off
and its agent went on all the time.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from headrace.groups.homes import GroupRecord, HomeProof, HomeStamp
from headrace.regions.core.confirming import HomeAnswer, HomeWatch
from headrace.sim.scenario import Action, Scenario
from headrace.sim.world import Process, World

TICK_MS = 40
READ_MS = 300
"""How often an agent reads the other regions, if nobody waits for it."""
ANSWER_MS = 150
"""How long a region has to answer."""
LEASE_MS = 1_000


class HomesAsked(msgspec.Struct, frozen=True):
    """An agent reads another region."""

    number: int


class HomesTold(msgspec.Struct, frozen=True):
    """What that region says."""

    number: int
    record: GroupRecord


class RegionCatalog(Process):
    """A region's catalog: it survives everything, and answers while it is up."""

    def __init__(self, world: World, name: str, home: str) -> None:
        super().__init__(world, name)
        self.record = GroupRecord(key="g", family="static", streams=(), config=b"", home=home)
        self.proof = HomeProof()
        self.lost: set[str] = set()

    @property
    def up(self) -> bool:
        return self.alive and not self.paused

    def receive(self, source: str, message: Any) -> None:
        if isinstance(message, HomesAsked):
            self.send(source, HomesTold(message.number, self.record))

    def follow(self, record: GroupRecord) -> None:
        """The later of two homes counts."""
        if record.stamp > self.record.stamp:
            self.record = record

    def move(self, home: str) -> None:
        """A person says where the group is at home."""
        stamp = HomeStamp(self.record.stamp.counter + 1, self.name)
        self.note("is told that the home is %s", home)
        self.record = msgspec.structs.replace(self.record, home=home, stamp=stamp)


class Asking(msgspec.Struct):
    """One round of asking; ``upto`` is None where nobody waits for it."""

    number: int
    upto: int | None
    asked: list[str]
    lost: list[str]
    since_ms: int
    """When it began, in the world's time."""
    until_ms: int
    heard: list[str] = []


class HomeAgent(Process):
    """The agent of a region; its life is its lease."""

    def __init__(self, scenario: RegionHomesScenario, region: str) -> None:
        super().__init__(scenario.world, f"{region}.agent")
        self.scenario, self.region = scenario, region
        self.rounds = 0

    @property
    def catalog(self) -> RegionCatalog:
        return self.scenario.catalogs[self.region]

    def start(self) -> None:
        self.watch = HomeWatch()
        self.asking: Asking | None = None
        self.life_ms = self.ticked_ms = self.world.now_ms
        self.read_ms = 0
        self.after(TICK_MS, "tick")

    def timer(self, tag: Any) -> None:
        self.after(TICK_MS, tag)
        silent_ms, self.ticked_ms = self.now_ms - self.ticked_ms, self.now_ms
        if not self.catalog.up or silent_ms > LEASE_MS:
            self.watch.began()
            self.asking = None
            self.life_ms = self.world.now_ms
        if not self.catalog.up:
            return
        if self.asking is None:
            self._ask()
        elif self.now_ms >= self.asking.until_ms:
            self._answer(self.asking)

    def _ask(self) -> None:
        proof = self.catalog.proof
        waiting = proof.asked > proof.answered
        if not waiting and self.now_ms - self.read_ms < READ_MS:
            return
        self.rounds += 1
        others = [name for name in self.scenario.names if name != self.region]
        upto, until_ms = proof.asked if waiting else None, self.now_ms + ANSWER_MS
        lost = sorted(self.catalog.lost)
        self.asking = Asking(self.rounds, upto, others, lost, self.world.now_ms, until_ms)
        self.read_ms = self.now_ms
        for other in others:
            self.send(other, HomesAsked(self.rounds))

    def receive(self, source: str, message: Any) -> None:
        asking = self.asking
        if not isinstance(message, HomesTold) or asking is None or not self.catalog.up:
            return
        asked = source in asking.asked and source not in asking.heard
        if message.number == asking.number and asked:
            self.catalog.follow(message.record)
            self.watch.heard(source)
            asking.heard.append(source)
            if len(asking.heard) == len(asking.asked):
                self._answer(asking)

    def _answer(self, asking: Asking) -> None:
        self.asking = None
        if asking.upto is None:
            return
        answer = self.watch.answer(asking.upto, asking.asked, asking.heard, asking.lost)
        self.note("answers %s", answer)
        self.scenario.answered(self, asking, answer)
        known = self.catalog.proof
        answered = max(known.answered, answer.upto or 0)
        self.catalog.proof = HomeProof(known.asked, answered, answer.silent)


class HomeMember(Process):
    """A program that consumes the group where it is at home."""

    def __init__(self, scenario: RegionHomesScenario, region: str, number: int) -> None:
        super().__init__(scenario.world, f"{region}.m{number}")
        self.scenario, self.region = scenario, region

    def start(self) -> None:
        self.started_ms = self.world.now_ms
        self.number: int | None = None
        self.consumes = False
        self.after(TICK_MS, "tick")

    def timer(self, tag: Any) -> None:
        self.after(TICK_MS, tag)
        catalog = self.scenario.catalogs[self.region]
        if not catalog.up:
            return
        if self.number is None:
            catalog.proof = catalog.proof.draw()
            self.number = catalog.proof.asked
        may = not catalog.record.waits(self.region) and not catalog.proof.waits(self.number)
        if may and not self.consumes:
            self.note("begins")
            self.scenario.begins(self)
        self.consumes = may


class RegionHomesScenario(Scenario):
    """Two or three regions, one group with a home."""

    name: ClassVar[str] = "region-homes"
    about: ClassVar[str] = "who may take itself for the home, when regions are lost and return"
    steps: ClassVar[int] = 2500
    action_ms: ClassVar[int] = 120
    mishap_ms: ClassVar[int] = 500
    down_ms: ClassVar[tuple[int, int]] = (50, 2500)
    pause_ms: ClassVar[tuple[int, int]] = (100, 2500)
    partition_ms: ClassVar[tuple[int, int]] = (100, 2500)
    settle_ms: ClassVar[int] = 60_000

    def build(self) -> None:
        rng = self.world.rng
        self.names = ["a", "b", "c"][: rng.choice((2, 3))]
        self.catalogs = {name: RegionCatalog(self.world, name, "a") for name in self.names}
        self.agents = {name: HomeAgent(self, name) for name in self.names}
        self.members = [HomeMember(self, name, n) for name in self.names for n in (1, 2)]
        self.given_up: dict[str, tuple[int, str, HomeStamp]] = {}
        """Homes that do not know yet that they were given up: since when, for whom, by what."""
        self.excused: dict[str, int] = {}
        for process in (*self.catalogs.values(), *self.agents.values(), *self.members):
            self.world.spawn(process)

    # --- outside -----------------------------------------------------------------------

    def actions(self) -> list[Action]:
        return [
            Action("lose the home", 4, self._lose),
            Action("give up the home", 6, self._give_up),
            Action("switch", 1, self._switch),
            Action("rejoin", 5, self._rejoin),
            Action("a program is started anew", 6, self._restart),
        ]

    def _home(self) -> RegionCatalog:
        latest = max(self.catalogs.values(), key=lambda each: each.record.stamp)
        return self.catalogs[latest.record.home or ""]

    def _processes(self, region: str) -> list[Process]:
        members = [each for each in self.members if each.region == region]
        return [self.catalogs[region], self.agents[region], *members]

    def _lose(self) -> None:
        """Every program of a region is killed, or its agent is only frozen; its catalog is away."""
        rng = self.world.rng
        home, frozen = self._home(), rng.random() < 0.4
        downs = [rng.randint(300, 3000) for _ in range(4)]
        for process, down_ms in zip(self._processes(home.name), downs, strict=True):
            if isinstance(process, HomeAgent) and frozen:
                self.world.pause(process, down_ms)
            else:
                self.world.crash(process, down_ms)
        self.world.reach("home.lost")

    def _give_up(self) -> None:
        """Somebody makes a survivor the home: the home does not answer, or so it seems."""
        home, rng = self._home(), self.world.rng
        survivor = self.catalogs[rng.choice([n for n in self.names if n != home.name])]
        cut = self.world.network.is_cut(survivor.name, home.name)
        if not survivor.up or (home.up and not cut) or survivor.record.home != home.name:
            return
        self.world.reach("home.given up, cut off" if home.up else "home.given up")
        survivor.lost.add(home.name)
        survivor.move(survivor.name)
        if home.record.home == home.name:
            self.given_up[home.name] = self.world.now_ms, survivor.name, survivor.record.stamp
            self.excused.pop(home.name, None)

    def _switch(self) -> None:
        home = self._home()
        target = self.world.rng.choice([name for name in self.names if name != home.name])
        if home.up and home.record.home == home.name and home.name not in self.given_up:
            home.move(target)

    def _rejoin(self) -> None:
        for catalog in self.catalogs.values():
            catalog.lost.clear()

    def _restart(self) -> None:
        self.world.crash(self.world.rng.choice(self.members), 20)

    # --- the promise -------------------------------------------------------------------

    def check(self) -> None:
        for name in list(self.given_up):
            if self.catalogs[name].record.stamp >= self.given_up[name][2]:
                self.world.reach("home.follows after its return")
                del self.given_up[name]

    def answered(self, agent: HomeAgent, asking: Asking, answer: HomeAnswer) -> None:
        """An agent lets programs begin that had asked before; was its region given up by then?

        It is excused if it went on, cut off, or if who has the group was declared lost here and is
        away: a person said so.
        """
        self.check()
        if answer.silent:
            self.world.reach("home.waits for who is silent")
        if answer.upto is None or agent.region not in self.given_up:
            return
        since_ms, where, _ = self.given_up[agent.region]
        if asking.since_ms <= since_ms:
            return
        lost = where in asking.lost and where in asking.asked and where not in asking.heard
        excused = lost or (where in answer.cut_off and agent.life_ms <= since_ms)
        self.world.require(
            excused,
            "a region that was down asks before it is a home again",
            f"{agent.region} was given up at {since_ms} for {where}, and answers {answer}",
        )
        self.world.reach("home.goes on, cut off")
        self.excused[agent.region] = answer.upto

    def begins(self, member: HomeMember) -> None:
        """A program begins to consume."""
        self.check()
        self.world.reach("member.begins")
        given_up = self.given_up.get(member.region)
        if given_up is None or member.started_ms <= given_up[0]:
            return
        assert member.number is not None
        self.world.require(
            member.number <= self.excused.get(member.region, 0),
            "who begins after its region was given up asks first",
            f"{member.name} begins, {member.region} was given up at {given_up[0]}",
        )

    # --- the end -----------------------------------------------------------------------

    def healed(self) -> None:
        self._rejoin()

    def quiescent(self) -> bool:
        homes = {catalog.record.home for catalog in self.catalogs.values()}
        return len(homes) == 1 and all(m.consumes == (m.region in homes) for m in self.members)

    def unsettled(self) -> str:
        records = {name: (c.record.home, c.proof) for name, c in self.catalogs.items()}
        return f"{records}; who consumes: {[m.name for m in self.members if m.consumes]}"


SCENARIO = RegionHomesScenario
