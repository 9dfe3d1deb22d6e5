"""The ordeal: starts the processes on one catalog, and kills, pauses and cuts them off.

Every choice comes from one random generator; what the operating system makes of it does not, so
a seed gives the same plan and not the same run.  Nothing here depends on luck: a writer is killed
only after it has had appends acknowledged, and every wait is for a condition, with a limit after
which it is a finding that nothing moves.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from headrace.log.open import open_log
from tests.torture import dying
from tests.torture.account import Finding, Totals
from tests.torture.audit import Report
from tests.torture.child import Child, Failed
from tests.torture.follower import Seen
from tests.torture.ledger import STREAMS, JournalTail, journal_path

T = TypeVar("T")

WRITERS = 4
MOVE_TIMEOUT_S = 90.0
END_TIMEOUT_S = 120.0
POLL_S = 0.005
ACKED_MAX = 200
"""How many appends a writer gets acknowledged at most, before it is due for a misfortune."""
ACKED_ARMED = 600
"""How many more one gets that is to die at a place, so that it comes there."""
SELDOM: tuple[dying.Place, ...] = ("in-file", "after-file", "in-checkpoint")

MISFORTUNES = ("kill",) * 5 + ("kill all", "kill while stopped", "kill scaler", "pause", "pause")
SERVER_MISFORTUNES = (*MISFORTUNES * 2, *("terminate", "cancel") * 4, "crash")


class Server:
    """What an ordeal can do to a PostgreSQL server; nothing for SQLite."""

    def terminate(self, rng: random.Random) -> bool:
        """End one connection to the catalog; false when there is nothing to end."""
        del rng
        return False

    def cancel(self, rng: random.Random) -> bool:
        """Cancel what one connection is doing."""
        del rng
        return False

    def crash(self, rng: random.Random) -> bool:
        """Kill one server process, which makes the server drop all and recover."""
        del rng
        return False


class Outcome(msgspec.Struct, frozen=True):
    """One ordeal and what came of it."""

    catalog: str
    kills: dict[str, int]
    pauses: int
    server_faults: dict[str, int]
    report: Report
    seen: list[Seen]
    findings: list[Finding]
    seconds: float


class Deck(Generic[T]):
    """Things that come in random order, but each as often as it is in the deck."""

    def __init__(self, things: Sequence[T], rng: random.Random) -> None:
        self._things = things
        self._rng = rng
        self._left: list[T] = []

    def draw(self) -> T:
        if not self._left:
            self._left = self._rng.sample(self._things, len(self._things))
        return self._left.pop()


class Writer:
    """A writer through all its incarnations."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.incarnation = -1
        self.child: Child | None = None
        self.place: str | None = None
        self.tail: JournalTail
        self.due = 0
        """How many appends it may have acknowledged before its turn to be killed comes."""

    @property
    def running(self) -> Child:
        assert self.child is not None
        return self.child


class Ordeal:
    """One catalog under torture."""

    def __init__(
        self,
        catalog: str,
        url: str,
        folder: Path,
        kills: int,
        rng: random.Random,
        server: Server | None = None,
        progress: Callable[[int], None] = lambda kills: None,
        writers: int = WRITERS,
    ) -> None:
        self._catalog = catalog
        self._url = url
        self._folder = folder
        self._store = folder / "store"
        self._wanted = kills
        self._rng = rng
        self._server = server or Server()
        self._progress = progress
        self._kills: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._pauses = 0
        self._findings: list[Finding] = []
        self._writers = [Writer(number) for number in range(writers)]
        embedded = server is None
        self._misfortunes = Deck(MISFORTUNES if embedded else SERVER_MISFORTUNES, rng)
        self._places = Deck(dying.places(embedded=embedded), rng)
        self._scaler: Child | None = None
        self._scalers = 0
        self._followers: list[Child] = []

    def run(self) -> Outcome:
        began = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        seen: list[Seen] = []
        try:
            self._start()
            while self._killed < self._wanted:
                self._strike()
            self._finish()
            seen = self._end_followers()
        except Failed as failed:
            self._findings.append(failed.finding)
        finally:
            self._kill_everything()
        report = self._judged()
        for each in seen:
            if each.events != report.events:
                text = f"a follower saw {each.events} of {report.events} events"
                self._findings.append(Finding("followed", text))
        return Outcome(
            catalog=self._catalog,
            kills=dict(self._kills),
            pauses=self._pauses,
            server_faults=dict(self._faults),
            report=report,
            seen=seen,
            findings=[*self._findings, *report.findings],
            seconds=time.monotonic() - began,
        )

    @property
    def _killed(self) -> int:
        """Kills of writers; those of scalers come on top."""
        return sum(n for kind, n in self._kills.items() if not kind.startswith("scaler"))

    # -- starting -----------------------------------------------------------------------

    def _start(self) -> None:
        """Everybody at once, on nothing: whoever comes first creates the catalog."""
        for writer in self._writers:
            self._spawn(writer)
        self._spawn_scaler()
        for manner in ("steady", "hopping"):
            arguments = [self._url, str(self._store), self._seed(), manner]
            self._followers.append(Child(self._folder, f"follower-{manner}", "follower", arguments))

    def _seed(self) -> str:
        return str(self._rng.randrange(1 << 32))

    def _spawn(self, writer: Writer, *, plain: bool = False) -> None:
        writer.incarnation += 1
        place, death = None, []
        writer.due = int(self._rng.triangular(1, ACKED_MAX, 1))
        if writer.incarnation and not plain and self._rng.random() < 0.5:
            place = self._places.draw()
            death = [place, str(self._rng.randint(1, 2 if place in SELDOM else 25))]
            writer.due += ACKED_ARMED
        writer.place = place
        writer.tail = JournalTail(journal_path(self._folder, writer.number, writer.incarnation))
        writer.child = Child(
            self._folder,
            f"writer-{writer.number}-{writer.incarnation:04}",
            "writer",
            [
                self._url,
                str(self._store),
                str(self._folder),
                str(writer.number),
                str(writer.incarnation),
                self._seed(),
                *death,
            ],
        )

    def _spawn_scaler(self) -> None:
        self._scalers += 1
        death = [str(self._rng.randint(2, 12))] if self._rng.random() < 0.5 else []
        arguments = [self._url, str(self._store), self._seed(), *death]
        self._scaler = Child(self._folder, f"scaler-{self._scalers:04}", "scaler", arguments)

    # -- striking -----------------------------------------------------------------------

    def _strike(self) -> None:
        """The next misfortune, once some writer is due for it."""
        writer = self._due_writer()
        match self._misfortunes.draw():
            case "kill":
                time.sleep(self._rng.random() * 0.02)
                self._kill(writer, "one")
            case "kill all":
                self._kill_all()
            case "kill while stopped":
                self._kill_stopped(writer)
            case "kill scaler":
                self._kill_scaler()
            case "pause":
                self._pause(writer)
            case "terminate":
                self._fault("terminated", self._server.terminate)
            case "cancel":
                self._fault("cancelled", self._server.cancel)
            case "crash":
                self._fault("crashed", self._server.crash)
                self._expect_movement()

    def _due_writer(self) -> Writer:
        """Wait for a writer that has done enough; looks after those that died on the way."""

        def look() -> Writer | None:
            due = []
            for writer in self._writers:
                if self._reap(writer) and writer.tail.refresh() >= writer.due:
                    due.append(writer)
            self._reap_scaler()
            self._look_at_followers()
            return self._rng.choice(due) if due else None

        return self._until(look, "no writer had its appends acknowledged")

    def _until(self, look: Callable[[], T | None], otherwise: str) -> T:
        deadline = time.monotonic() + MOVE_TIMEOUT_S
        while True:
            found = look()
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise Failed("stuck", f"{otherwise} within {MOVE_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)

    def _reap(self, writer: Writer) -> bool:
        """Whether it still runs; one that died at its place is started again."""
        status = writer.running.status()
        if status is None:
            return True
        if status != -signal.SIGKILL or writer.place is None:
            raise Failed(*_pair(writer.running.failure(status)))
        writer.running.stdin.close()
        self._count(writer.place)
        self._spawn(writer)
        return False

    def _reap_scaler(self) -> None:
        assert self._scaler is not None
        status = self._scaler.status()
        if status is None:
            return
        if status != -signal.SIGKILL:
            raise Failed(*_pair(self._scaler.failure(status)))
        self._scaler.stdin.close()
        self._kills["scaler in-scale"] += 1
        self._spawn_scaler()

    def _look_at_followers(self) -> None:
        for follower in self._followers:
            status = follower.status()
            if status is not None:
                raise Failed(*_pair(follower.failure(status)))

    def _count(self, kind: str) -> None:
        self._kills[kind] += 1
        self._progress(self._killed)

    def _kill(self, writer: Writer, kind: str) -> None:
        writer.running.kill()
        self._count(kind)
        self._spawn(writer)

    def _kill_all(self) -> None:
        """All writers at the same moment, the scaler with them."""
        assert self._scaler is not None
        for writer in self._writers:
            writer.running.signal(signal.SIGKILL)
        self._scaler.kill()
        self._kills["scaler"] += 1
        for writer in self._writers:
            self._kill(writer, "all at once")
        self._spawn_scaler()

    def _kill_scaler(self) -> None:
        assert self._scaler is not None
        self._scaler.kill()
        self._kills["scaler"] += 1
        self._spawn_scaler()

    def _pause(self, writer: Writer) -> None:
        """Stop a writer for a moment, whatever it holds; afterwards everybody must go on."""
        writer.running.signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(0.02, 0.4))
        writer.running.signal(signal.SIGCONT)
        self._pauses += 1
        self._expect_movement()

    def _kill_stopped(self, writer: Writer) -> None:
        """Stop a writer and kill it as it stands; the others must get past what it held."""
        writer.running.signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(0.02, 0.2))
        self._kill(writer, "while stopped")
        self._expect_movement()

    def _fault(self, kind: str, fault: Callable[[random.Random], bool]) -> None:
        if fault(self._rng):
            self._faults[kind] += 1

    def _expect_movement(self) -> None:
        """Every writer that was at work gets something acknowledged from now on."""
        before = {w: (w.incarnation, w.tail.refresh()) for w in self._writers}
        waiting = {writer for writer, (_, acked) in before.items() if acked}

        def look() -> bool | None:
            for writer in list(waiting):
                incarnation, acked = before[writer]
                gone = not self._reap(writer) or writer.incarnation != incarnation
                if gone or writer.tail.refresh() > acked:
                    waiting.discard(writer)
            return True if not waiting else None

        self._until(look, "after a pause or a kill some writer got nothing acknowledged")

    # -- ending -------------------------------------------------------------------------

    def _finish(self) -> None:
        """Let every writer finish what it does, and resolve what it left in doubt."""
        for writer in self._writers:
            if writer.running.status() is None:
                writer.running.stdin.close()
        for writer in self._writers:
            status = writer.running.wait(END_TIMEOUT_S)
            if status == -signal.SIGKILL and writer.place is not None:
                self._count(writer.place)
                self._spawn(writer, plain=True)
                writer.running.stdin.close()
                status = writer.running.wait(END_TIMEOUT_S)
            if status != 0:
                raise Failed(*_pair(writer.running.failure(status)))
        assert self._scaler is not None
        self._scaler.kill()

    def _end_followers(self) -> list[Seen]:
        """Followers end once they have seen everything."""
        log = open_log(self._url, self._store, create=False)
        heads = {
            name: {segment.number: segment.head for segment in log.stream(name).segments}
            for name in STREAMS
        }
        log.catalog.close()
        line = msgspec.json.encode(heads) + b"\n"
        seen = []
        for follower in self._followers:
            self._look_at_followers()
            follower.stdin.write(line)
            follower.stdin.close()
            status = follower.wait(END_TIMEOUT_S)
            if status != 0:
                raise Failed(*_pair(follower.failure(status)))
            seen.append(msgspec.json.decode(follower.output(), type=Seen))
            self._followers = [each for each in self._followers if each is not follower]
        return seen

    def _kill_everything(self) -> None:
        left = [writer.child for writer in self._writers] + [self._scaler, *self._followers]
        for child in left:
            if child is not None and child.status() is None:
                child.kill()

    def _judged(self) -> Report:
        try:
            return self._audit()
        except Failed as failed:
            return Report([failed.finding], Totals(), events=0, batches=0, files=0, orphans=0)

    def _audit(self) -> Report:
        child = Child(
            self._folder, "audit", "audit", [self._url, str(self._store), str(self._folder)]
        )
        child.stdin.close()
        status = child.wait(END_TIMEOUT_S)
        if status != 0:
            raise Failed(*_pair(child.failure(status)))
        return msgspec.json.decode(child.output(), type=Report)


def _pair(finding: Finding) -> tuple[str, str]:
    return finding.kind, finding.detail
