"""The simulator's own promises, on a toy protocol: a counter kept by two processes."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys

import pytest

from headrace.sim import Action, Fault, Run, Scenario, parse_faults, replay, run_seed, shrink
from headrace.sim.faults import ALL_FAULTS, UnknownFaultError
from headrace.sim.store import Conflict, Done, Outcome, Snapshot
from headrace.sim.world import Dice, Process, World


class Counter(Process):
    """Adds one to a stored number whenever it is told to, and tells its peer."""

    def start(self) -> None:
        self.seen = 0
        self.after(200, "tick")

    def receive(self, source: str, message: object) -> None:
        self.seen += 1
        self.submit("add", self._add)

    def timer(self, tag: object) -> None:
        peer = "b" if self.name == "a" else "a"
        self.send(peer, ("hello", self.seen))
        self.after(200, "tick")

    def stored(self, tag: object, outcome: Outcome) -> None:
        self.note("stored %s", outcome)
        if isinstance(outcome, Done):
            self.world.reach("stored")

    @staticmethod
    def _add(tx: Snapshot) -> int:
        entry = tx.get("numbers", "n")
        value = (entry.value if entry else 0) + 1
        tx.put("numbers", "n", value, revision=entry.revision if entry else 0)
        return int(value)


class Counting(Scenario):
    name = "counting"
    about = "two processes count"
    steps = 300
    limit: int | None = None

    def build(self) -> None:
        self.world.log.create(2)
        self.world.spawn(Counter(self.world, "a"))
        self.world.spawn(Counter(self.world, "b"))
        self.last = 0

    def actions(self) -> list[Action]:
        return [
            Action("publish", 5, lambda: self.world.log.append(f"k{self.world.rng.randint(0, 9)}")),
            Action("split", 1, self._split, Fault.SCALE),
        ]

    def _split(self) -> None:
        self.world.log.split(self.world.rng.choice(self.world.log.open_segments).number)

    def check(self) -> None:
        entry = self.world.store.entries.get(("numbers", "n"))
        value = entry.value if entry else 0
        self.world.require(value >= self.last, "the number never falls", f"{value} < {self.last}")
        self.last = value
        if self.limit is not None:
            self.world.require(value < self.limit, "the number stays small", f"{value}")


class Failing(Counting):
    name = "failing"
    limit = 12


def test_same_seed_tells_the_same_story_to_the_byte() -> None:
    first = replay(Counting, 5)
    second = replay(Counting, 5)
    assert first == second
    assert first[1].count("\n") > 100


def test_different_seeds_tell_different_stories() -> None:
    assert replay(Counting, 5)[1] != replay(Counting, 6)[1]


def test_story_does_not_depend_on_the_interpreters_hash_seed() -> None:
    program = (
        "from tests.sim.test_world import Counting\n"
        "from headrace.sim import replay\n"
        "import sys\n"
        "sys.stdout.write(replay(Counting, 11)[1])\n"
    )
    stories = []
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        told = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            check=True,
            timeout=60,
        )
        stories.append(told.stdout)
    assert stories[0] == stories[1]
    assert stories[0].count(b"\n") > 100


def test_every_kind_of_world_fault_strikes_and_is_counted() -> None:
    struck: set[str] = set()
    for seed in range(20):
        struck |= set(run_seed(Counting, seed).faults)
    expected = ALL_FAULTS - {Fault.SLOW, Fault.FAIL, Fault.STALL}
    assert struck == {kind.value for kind in expected}


def test_faults_that_are_switched_off_do_not_strike() -> None:
    for seed in range(5):
        result = run_seed(Counting, seed, faults={Fault.DROP})
        assert set(result.faults) <= {"drop"}


def test_first_violation_stops_the_run_and_names_the_invariant() -> None:
    result = run_seed(Failing, 3)
    assert result.invariant == "the number stays small"
    assert result.detail == "12"


def test_error_that_escapes_a_process_is_a_violation() -> None:
    class Broken(Counting):
        name = "broken"

        def check(self) -> None:
            if self.world.steps > 50:
                raise KeyError("lost")

    assert run_seed(Broken, 1).invariant == "no error escapes"


def test_shrinking_keeps_the_invariant_and_takes_faults_away() -> None:
    shrunk = shrink(Failing, 3)
    assert shrunk.result.invariant == "the number stays small"
    assert shrunk.faults_kept < shrunk.faults_struck
    assert "VIOLATION" in shrunk.history[-1]
    assert shrunk.runs <= 60


def test_long_history_is_cut_from_the_front() -> None:
    shrunk = shrink(Failing, 3, runs_max=1)
    excerpt = shrunk.excerpt(10)
    assert len(excerpt) == 11
    assert excerpt[-1] == shrunk.history[-1]
    assert "lines left out" in excerpt[0]


def test_world_that_does_not_rest_breaks_quiescence() -> None:
    class Restless(Counting):
        name = "restless"
        settle_ms = 5_000

        def quiescent(self) -> bool:
            return False

        def unsettled(self) -> str:
            return "never content"

    result = run_seed(Restless, 1)
    assert (result.invariant, result.detail) == ("quiescence", "never content")


def test_paused_process_hears_everything_after_it_resumes() -> None:
    world = World(1, faults=())
    world.spawn(Counter(world, "a"))
    world.spawn(Counter(world, "b"))
    a = world.processes["a"]
    assert isinstance(a, Counter)
    world.pause(a, 1000)
    while world.now_ms < 900:
        world.step()
    assert a.seen == 0
    while world.now_ms < 1100:
        world.step()
    assert a.seen >= 4


def test_crashed_process_forgets_its_timers_and_memory() -> None:
    world = World(1, faults=())
    world.spawn(Counter(world, "a"))
    world.spawn(Counter(world, "b"))
    a = world.processes["a"]
    assert isinstance(a, Counter)
    while world.now_ms < 1000:
        world.step()
    assert a.seen >= 3
    world.crash(a, 500)
    while not a.alive:
        world.step()
    assert a.seen == 0


def test_links_are_first_in_first_out_without_faults() -> None:
    world = World(9, faults=())
    heard: list[object] = []

    class Listener(Process):
        def receive(self, source: str, message: object) -> None:
            heard.append(message)

    world.spawn(Listener(world, "a"))
    world.spawn(Listener(world, "b"))
    for number in range(50):
        world.processes["a"].send("b", number)
    while world.step():
        pass
    assert heard == list(range(50))


def test_partition_cuts_both_ways_and_heals() -> None:
    world = World(9, faults=())
    world.network.partition(frozenset({"a"}), 100)
    assert world.network.is_cut("a", "b")
    assert world.network.is_cut("b", "a")
    assert not world.network.is_cut("b", "c")
    while world.step():
        pass
    assert not world.network.is_cut("a", "b")


def test_store_transaction_that_conflicts_changes_nothing() -> None:
    world = World(1, faults=())

    def half(tx: Snapshot) -> None:
        tx.put("b", "x", 1)
        tx.put("b", "x", 2, revision=99)

    assert isinstance(world.store.run(half), Conflict)
    assert world.store.entries == {}


def test_lease_passes_on_only_when_expired_and_its_token_grows() -> None:
    world = World(1, faults=())
    store = world.store
    first = store.run(lambda tx: tx.acquire_lease("l", "a", 100))
    assert isinstance(first, Done)
    assert isinstance(store.run(lambda tx: tx.acquire_lease("l", "b", 100)), Conflict)
    world.now_ms = 101
    second = store.run(lambda tx: tx.acquire_lease("l", "b", 100))
    assert isinstance(second, Done)
    assert second.value.token == first.value.token + 1
    assert isinstance(store.run(lambda tx: tx.renew_lease("l", first.value.token, 9)), Conflict)


def test_claim_needs_a_higher_token() -> None:
    store = World(1, faults=()).store
    assert isinstance(store.run(lambda tx: tx.claim("g", 0, "a", 1)), Done)
    assert isinstance(store.run(lambda tx: tx.claim("g", 0, "a", 1)), Done)
    assert isinstance(store.run(lambda tx: tx.claim("g", 0, "b", 1)), Conflict)
    assert isinstance(store.run(lambda tx: tx.claim("g", 0, "b", 2)), Done)


def test_successors_of_a_split_and_a_merge_know_their_predecessors() -> None:
    log = World(1, faults=()).log
    log.create(2)
    split = log.split(0)
    assert split == (2, 3)
    assert log.segments[2].predecessors == (0,)
    assert log.split(0) is None
    assert log.merge(3, 1) == 4
    assert log.segments[4].predecessors == (3, 1)
    assert [s.number for s in log.open_segments] == [2, 4]
    events = [log.append("k") for _ in range(3)]
    assert [event.key_sequence for event in events] == [0, 1, 2]
    log.split_twice(2)
    assert [(s.number, s.predecessors) for s in log.segments.values()][5:] == [
        (5, (2,)), (6, (2,)), (7, (5,)), (8, (5,)), (9, (6,)), (10, (6,))
    ]  # fmt: skip


def test_fault_lists_are_read_and_refused() -> None:
    assert parse_faults("drop,crash") == {Fault.DROP, Fault.CRASH}
    assert parse_faults("all") == ALL_FAULTS
    assert parse_faults("none") == frozenset()
    assert parse_faults("-drop") == ALL_FAULTS - {Fault.DROP}
    with pytest.raises(UnknownFaultError, match="'flood'"):
        parse_faults("drop,flood")


def test_muted_fault_is_left_out_and_the_rest_stays() -> None:
    whole = Run(Counting, 4)
    whole.finish()
    less = Run(Counting, 4, muted=frozenset({0}))
    less.finish()
    assert whole.world.history() != less.world.history()


def test_dice_draw_what_a_generator_of_random_draws() -> None:
    dice, plain = Dice(7), random.Random(7)
    for low, high in ((0, 0), (1, 8), (-5, 5), (50, 4000), (0, 1023), (0, 1024), (3, 2**70)) * 50:
        assert dice.randint(low, high) == plain.randint(low, high)
        assert dice.choice(range(9)) == plain.choice(range(9))
    assert dice.getstate() == plain.getstate()
    with pytest.raises(ValueError, match="empty range"):
        dice.randint(2, 1)


def test_a_run_leaves_the_garbage_collector_as_it_was() -> None:
    before = gc.get_threshold()
    run_seed(Counting, 3)
    assert gc.get_threshold() == before
