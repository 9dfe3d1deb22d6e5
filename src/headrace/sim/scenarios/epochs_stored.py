"""A stored stream of epochs: several publishers, the ledger, the progress log, and who replays it.

The catalog is a handful of values that one function changes in one go, as a transaction does.  The
programs of publishers are killed, freeze, and wake up with a token that is stale by then; their
successors take back what was open.  Ledger, lines, search and subscriber are those of the runtime.
The oracle knows which rows count, by its own comparisons, and holds every replay, from any frontier
that ever was, against that.
"""

from __future__ import annotations

from headrace.epochs import Epoch, Frontier, Mode, Subscriber, Time, TimeShape
from headrace.epochs.core import ledger
from headrace.epochs.core.commits import EpochCommit, GiveUp, JoinStream, Publish, Step
from headrace.epochs.core.feed import LineFeed, first_line
from headrace.epochs.core.ledger import OPEN, PublisherState
from headrace.epochs.core.lines import RELEASED, ROLLED_BACK, Line, Span
from headrace.errors import EpochError, HeadraceError
from headrace.sim.epoch_oracle import covered_from_below
from headrace.sim.faults import Fault
from headrace.sim.scenario import Action
from headrace.sim.world import World

NAMES = ("eu", "us", "asia")
SEGMENTS = 3
LINES_MAX = 200
"""A replay reads all of them, so that more would only take longer."""

RowId = int


class PublisherProgram:
    """A running program of one publisher; it does not know whether it was replaced."""

    def __init__(self, name: str, token: int) -> None:
        self.name = name
        self.token = token


class StoredStream:
    """The catalog, the programs, and the oracle."""

    def __init__(self, world: World, shape: TimeShape) -> None:
        self.world = world
        self.shape = shape
        self.state, _ = ledger.begin("orders", shape)
        self.publishers: dict[str, PublisherState] = {}
        self.tokens: dict[str, int] = {}
        self.unclean: set[str] = set()
        self.lines: list[Line] = []
        self.segments: list[list[tuple[Time, RowId]]] = [[] for _ in range(SEGMENTS)]
        self.programs: list[PublisherProgram] = []
        self.items = 0
        # the oracle
        self.counted: dict[Time, dict[RowId, str]] = {}
        self.complete: dict[Time, frozenset[RowId]] = {}
        self.frontiers: list[Frontier] = [(shape.bottom,)]

    def actions(self) -> list[Action]:
        return [
            Action("start a program", 6, self._start),
            Action("publish", 40, self._publish),
            Action("kill a program", 3, self._kill, Fault.CRASH),
            Action("misbehave", 6, self._misbehave),
            Action("close or roll back", 1, self._give_up),
            Action("replay", 2, self._replay),
        ]

    # -- programs -----------------------------------------------------------------------

    def _start(self) -> None:
        """A program takes a name; whoever had it may be frozen, and wake up later."""
        if self.state.status != OPEN:
            return
        name = self.world.rng.choice(NAMES)
        frozen = any(one.name == name for one in self.programs)
        program = PublisherProgram(name, self.tokens.get(name, 0) + 1)
        self.tokens[name] = program.token
        self.programs.append(program)
        if name not in self.publishers:
            self._commit(program, JoinStream(name, program.token), [])
        elif frozen or name in self.unclean:
            self.world.reach("ledger.taken over")
            self._commit(program, Publish(name, program.token, (), take_back=True), [])
        self.unclean.discard(name)

    def _kill(self) -> None:
        if self.programs:
            program = self.programs.pop(self.world.rng.randrange(len(self.programs)))
            self.unclean.add(program.name)

    def _publish(self) -> None:
        if not self.programs or self.state.status != OPEN or len(self.lines) >= LINES_MAX:
            return
        rng = self.world.rng
        program = rng.choice(self.programs)
        held = self.publishers.get(program.name)
        if held is None:
            return
        times = [self._later(rng.choice(held.held)) for _ in range(rng.randint(0, 3))]
        advance: Frontier | None = None
        if rng.random() < 0.5:
            goal = self._later(rng.choice(held.frontier))
            advance = (goal,)
        step = Step(tuple(sorted(set(times))), len(times), advance)
        self._commit(program, Publish(program.name, program.token, (step,)), times)

    def _later(self, time: Time) -> Time:
        rng = self.world.rng
        if isinstance(time, int):
            return time + rng.choice((0, 0, 1, 1, 2, 4))
        return tuple(part + rng.choice((0, 0, 1, 2)) for part in time)

    def _give_up(self) -> None:
        """An operator rolls back or releases a publisher, or it closes: its program is fenced."""
        rng = self.world.rng
        if len(self.publishers) < 2 or self.state.status != OPEN:
            return
        name = rng.choice(list(self.publishers))
        self.tokens[name] += 1
        event = rng.choice((ROLLED_BACK, RELEASED))
        self.world.reach(f"ledger.{event}")
        self._commit(
            PublisherProgram(name, self.tokens[name]), GiveUp(name, self.tokens[name], event), []
        )

    # -- the transaction ----------------------------------------------------------------

    def is_fenced(self, program: PublisherProgram) -> bool:
        """Whether the token is not the newest."""
        return program.token != self.tokens.get(program.name, 0)

    def _commit(self, program: PublisherProgram, commit: EpochCommit, times: list[Time]) -> None:
        """Rows, line and ledger, all or nothing."""
        if self.is_fenced(program):
            self.world.reach("ledger.fenced")
            return
        if self.world.faults.strikes(Fault.CRASH, 0.02):
            self.unclean.add(program.name)
            return  # killed before the commit
        known = self.publishers.get(program.name)
        placed = self._placed(times)
        if isinstance(commit, Publish):
            commit = Publish(
                commit.publisher,
                commit.token,
                commit.steps,
                tuple(sorted(set(times))),
                self._spans(placed, sorted(set(times))),
                commit.take_back,
            )
        try:
            decided = ledger.decide(self.state, known, commit)
        except HeadraceError as error:
            self.world.require(
                isinstance(error, EpochError), "a refusal has its own words", f"{error}"
            )
            self.world.reach("ledger.refused")
            return
        self._oracle(program, commit, decided.line, placed)
        self.store(decided, placed)

    def store(self, decided: ledger.Decided, placed: list[tuple[int, Time, RowId]]) -> None:
        """What one transaction writes."""
        name = decided.line.publisher if decided.line is not None else None
        self.state = decided.state
        if name is not None:
            if decided.publisher is None:
                self.publishers.pop(name, None)
            else:
                self.publishers[name] = decided.publisher
        for segment, time, item in placed:
            self.segments[segment].append((time, item))
        if decided.line is not None:
            self.lines.append(decided.line)
        self._check()

    def _placed(self, times: list[Time]) -> list[tuple[int, Time, RowId]]:
        found = []
        for time in times:
            self.items += 1
            found.append((self.items % SEGMENTS, time, self.items))
        return sorted(found)

    def _spans(self, placed: list[tuple[int, Time, RowId]], times: list[Time]) -> tuple[Span, ...]:
        spans = []
        for segment in range(SEGMENTS):
            rows = [time for number, time, _ in placed if number == segment]
            if not rows:
                continue
            start = len(self.segments[segment])
            counts = tuple((place, rows.count(t)) for place, t in enumerate(times) if t in rows)
            spans.append(Span(segment, start, start + len(rows), () if len(times) == 1 else counts))
        return tuple(spans)

    # -- the oracle ---------------------------------------------------------------------

    def _oracle(
        self,
        program: PublisherProgram,
        commit: EpochCommit,
        line: Line | None,
        placed: list[tuple[int, Time, RowId]],
    ) -> None:
        self.world.require(
            program.token == self.tokens[program.name],
            "a publisher that was replaced writes nothing",
            f"{program.name} with token {program.token}, now {self.tokens[program.name]}",
        )
        rolled = isinstance(commit, GiveUp) and commit.event == ROLLED_BACK
        if rolled or (isinstance(commit, Publish) and commit.take_back):
            held = self.publishers[program.name].held
            for time, items in self.counted.items():
                if covered_from_below(held, time):
                    for item in [one for one, who in items.items() if who == program.name]:
                        del items[item]
        if line is not None:
            for _, time, item in placed:
                self.counted.setdefault(time, {})[item] = program.name

    def _check(self) -> None:
        """Frontiers go forward, and what is complete never changes."""
        held = [time for one in self.publishers.values() for time in one.held]
        if self.state.unclaimed:
            held.append(self.shape.bottom)
        minimal = [
            time for time in set(held)
            if not any(other != time and covered_from_below((other,), time) for other in held)
        ]  # fmt: skip
        lower = self.state.lower
        self.world.require(
            sorted(minimal) == sorted(lower), "the frontier is the least that is held",
            f"{sorted(minimal)} and {lower}",
        )  # fmt: skip
        before = self.frontiers[-1]
        self.world.require(
            all(covered_from_below(before, time) for time in lower), "frontiers never go back",
            f"{before} to {lower}",
        )  # fmt: skip
        if lower != before:
            self.frontiers.append(lower)
        for time, items in self.counted.items():
            if time in self.complete:
                if self.complete[time] != items.keys():
                    what = f"{time}: {sorted(self.complete[time])} and now {sorted(items)}"
                    self.world.fail("complete epochs never change", what)
            elif not covered_from_below(lower, time):
                self.complete[time] = frozenset(items)

    def _misbehave(self) -> None:
        """Try what must be refused: rows before what is held, and a join where all is complete."""
        if self.state.status != OPEN or not self.programs:
            return
        over = sorted(self.complete)
        if not over:
            return
        rng = self.world.rng
        time, program = rng.choice(over), rng.choice(self.programs)
        if rng.random() < 0.5:
            step = Step((time,), 1)
            self._commit(program, Publish(program.name, program.token, (step,)), [time])
        elif "late" not in self.publishers:
            self.tokens.setdefault("late", 1)
            late = PublisherProgram("late", self.tokens["late"])
            self._commit(late, JoinStream("late", late.token, (time,)), [])

    # -- who reads ----------------------------------------------------------------------

    def _replay(self) -> None:
        """Read from a frontier that was, and stop between any two epochs and go on."""
        start = self.world.rng.choice(self.frontiers)
        seen: dict[Time, frozenset[RowId]] = {}
        stop = self.world.rng.randint(0, 20)
        resume = self._read(start, seen, stop)
        if resume is not None:
            self.world.reach("replay.resumed")
            self._read(resume, seen, 10**9)
        wanted = {
            time: items
            for time, items in self.complete.items()
            if items and covered_from_below(start, time)
        }
        if seen != wanted:
            what = f"from {start}: {seen} and not {wanted}"
            self.world.fail("a replay gives every complete epoch, whole", what)
        self.world.reach("replay.whole")

    def _read(
        self, start: Frontier, seen: dict[Time, frozenset[RowId]], stop: int
    ) -> Frontier | None:
        lines = self.lines
        first = first_line(self.shape, lines.__getitem__, 0, len(lines), start)
        lower = lines[first - 1].lower if first else (self.shape.bottom,)
        subscriber = Subscriber(
            ["orders"], self.shape, mode=Mode.WHOLE, start=start, stored=True, counts=False
        )
        feed = LineFeed("orders", lower)
        subscriber.receive("orders", feed.snapshot())
        for number in range(first, len(lines)):
            for message in feed.messages(number, lines[number]):
                for effect in subscriber.receive("orders", message):
                    if not isinstance(effect, Epoch):
                        continue
                    self._given(effect, seen)
                    stop -= 1
                    if not stop:
                        return effect.resume
        return None

    def _given(self, epoch: Epoch, seen: dict[Time, frozenset[RowId]]) -> None:
        items: list[RowId] = []
        for batch in epoch.batches:
            for one in batch.data.payload:
                rows = self.segments[one.segment][one.start : one.end]
                found = [item for time, item in rows if time == epoch.time]
                if len(found) != one.rows:
                    self.world.fail("a line tells the rows of its commit", f"{one}")
                items += found
        self.world.require(epoch.time not in seen, "an epoch comes once", f"{epoch.time}")
        seen[epoch.time] = frozenset(items)

    def final(self) -> None:
        """The whole of it, from its beginning."""
        for _ in range(3):
            self._replay()
