"""Seek and putting back under fire: members in other processes that are killed meanwhile.

    python -m tests.torture.steering --seeks 50 --letters 1000 --rounds 10 [--postgres]

*Seek.*  Events are published without a pause, two processes consume them, the group is put back and
forth, and between seeks a process is killed with SIGKILL and started again.  Judged by what the
processes were told: nothing that was delivered before a seek is acked after it; after the last seek
every event from there on is acked; nothing is acked twice between two seeks; what a seek skipped is
not acked after it.

*Put back.*  All letters are put back by a process that is killed in the middle, then by another.
Each is there once more, and once only.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import headrace.sync
from headrace.catalog import Tx
from headrace.errors import CatalogUnavailableError
from headrace.groups.letter_names import PUT_BACK
from headrace.groups.operations import targets
from headrace.log.events import Event
from tests.support import Process, wait_until
from tests.torture.run import new_folder
from tests.torture.server import create_database, running_postgres

Kind = Literal["static", "shared", "elastic", "reader"]
NAMES = {"shared": "$share/g/orders.>", "reader": "reader/g"}
WORKER = "tests.torture.steering_worker"
PATIENCE_S = 90.0


@dataclass
class Verdict:
    """What a run met, and what was wrong."""

    seeks: int = 0
    kills: int = 0
    acked: int = 0
    fenced: int = 0
    events: int = 0
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Seek:
    begun_ns: int
    done_ns: int
    floors: dict[int, int]


def seeks_under_load(url: str, folder: Path, kind: Kind, count: int, seed: int) -> Verdict:
    """Put a group back and forth ``count`` times."""
    rng, verdict = random.Random(seed), Verdict()
    name = NAMES.get(kind, "orders/g")
    with headrace.sync.open(url, housekeeping=False) as hr, ExitStack() as ends:
        if kind == "shared":
            hr.create_stream("orders", ["orders.>"], segments=4)
            hr.shared_groups.declare("g", "orders.>", start="earliest")
        elif kind == "reader":
            hr.create_stream("orders", ["orders.>"], segments=4)
            hr.reader_groups.create("g", ["orders"])
        else:
            hr.create_stream("orders", ["orders.>"], partitions=4)
            hr.groups.create_static("orders", "g", max_members=4, members=["m0", "m1"])
        stop = threading.Event()
        feeding = threading.Thread(target=_feed, args=(hr, stop, seed))
        workers: list[Process] = []
        ends.callback(_kill_all, workers)
        lives = [0, 0]

        def start(at: int) -> Process:
            lives[at] += 1
            journal = str(folder / f"{at}-{lives[at]}.journal")
            return Process(WORKER, "consume", url, kind, f"m{at}", journal)

        workers += [start(0), start(1)]
        for worker in workers:
            worker.line()
        feeding.start()
        done: list[Seek] = []
        try:
            for _ in range(count):
                time.sleep(rng.uniform(0.05, 0.3))
                if rng.random() < 0.25:
                    victim = rng.randrange(2)
                    workers[victim].kill()
                    workers[victim] = start(victim)
                    verdict.kills += 1
                done.append(_seek(hr, name, rng))
        finally:
            stop.set()
            feeding.join()
        wait_until(lambda: _is_through(hr, name), "every event to be acked", PATIENCE_S)
        for worker in workers:
            assert worker._process.stdin is not None
            worker._process.stdin.close()
            worker._process.wait(60)
        heads = {s.number: s.head for s in hr.stream("orders").segments}
    verdict.seeks, verdict.events = len(done), sum(heads.values())
    _judge(folder, done, heads, verdict)
    return verdict


def _kill_all(workers: list[Process]) -> None:
    for worker in workers:
        worker.kill()


def _feed(hr: headrace.sync.Headrace, stop: threading.Event, seed: int) -> None:
    rng, n = random.Random(seed), 0
    while not stop.is_set():
        some = [
            Event(subject=f"orders.{k % 50}", value=b"x", key=str(k % 50)) for k in range(n, n + 20)
        ]
        hr.append("orders", some)
        n += 20
        time.sleep(rng.uniform(0.03, 0.1))


def _seek(hr: headrace.sync.Headrace, name: str, rng: random.Random) -> Seek:
    segments = hr.stream("orders").segments
    to: dict[str | int, int] = {
        s.number: rng.randint(max(0, s.head - 150), s.head) for s in segments
    }
    begun = time.monotonic_ns()
    hr.seek(name, to)
    return Seek(begun, time.monotonic_ns(), {int(n): offset for n, offset in to.items()})


def _is_through(hr: headrace.sync.Headrace, name: str) -> bool:
    def look(tx: Tx) -> bool:
        here = targets.spots(tx, targets.find(tx, name))
        return all(spot.progress.floor >= spot.segment.head for spot in here)

    try:
        return hr.client.log.catalog.read(look, snapshot=True)
    except CatalogUnavailableError:
        return False


def _judge(folder: Path, seeks: list[Seek], heads: dict[int, int], verdict: Verdict) -> None:
    last = seeks[-1]
    after_last: set[tuple[int, int]] = set()
    unknown: set[tuple[int, int]] = set()
    periods: Counter[tuple[int, int, int]] = Counter()
    for journal in sorted(folder.glob("*.journal")):
        asked: dict[tuple[int, int, int], int] = {}
        for line in journal.read_text().rpartition("\n")[0].splitlines():
            told, *numbers = line.split()
            segment, offset, delivered, called, confirmed = map(int, numbers)
            if told == "asks":
                asked[segment, offset, delivered] = called
                continue
            asked.pop((segment, offset, delivered), None)
            if told == "fenced":
                verdict.fenced += 1
            elif told == "unknown":
                unknown.add((segment, offset))
            else:
                verdict.acked += 1
                _judge_ack(seeks, (segment, offset, delivered, called, confirmed), verdict, periods)
                if confirmed >= last.begun_ns:
                    after_last.add((segment, offset))
        # A killed process was told nothing of these: they may count.
        unknown |= {(segment, offset) for segment, offset, _ in asked}
    verdict.findings += [
        f"{place} acked {times} times between two seeks"
        for place, times in periods.items()
        if times > 1
    ]
    wanted = {(n, o) for n, head in heads.items() for o in range(last.floors[n], head)}
    lost = wanted - after_last - unknown
    if lost:
        verdict.findings.append(f"{len(lost)} events were never acked after the last seek: "
                                f"{sorted(lost)[:5]}")  # fmt: skip


def _judge_ack(
    seeks: list[Seek],
    ack: tuple[int, int, int, int, int],
    verdict: Verdict,
    periods: Counter[tuple[int, int, int]],
) -> None:
    segment, offset, delivered, called, confirmed = ack
    for at, seek in enumerate(seeks):
        if delivered < seek.begun_ns and called > seek.done_ns:
            verdict.findings.append(f"{segment}:{offset} was acked across seek {at}")
        ended = seeks[at + 1].begun_ns if at + 1 < len(seeks) else sys.maxsize
        if delivered > seek.done_ns and confirmed < ended:
            periods[at, segment, offset] += 1
            if offset < seek.floors[segment]:
                verdict.findings.append(f"{segment}:{offset} was skipped by seek {at}, and acked")


def letters_put_back(url: str, kind: Kind, count: int, seed: int) -> Verdict:
    """Have ``count`` letters put back by a process that dies in the middle."""
    rng, verdict = random.Random(seed), Verdict(events=count)
    with headrace.sync.open(url, housekeeping=False) as hr:
        hr.create_stream("orders", ["orders.>"], partitions=0 if kind == "elastic" else 4)
        if kind == "elastic":
            hr.groups.create_elastic("orders", "g", max_members=4, filter="orders.*",
                                     wildcards=[1], members=["m"])  # fmt: skip
        else:
            hr.groups.create_static("orders", "g", max_members=4, members=["m"])
        hr.append(
            "orders",
            [Event(subject=f"orders.{n % 50}", value=b"%d" % n, key=str(n)) for n in range(count)],
        )
        if kind == "elastic":
            from headrace.groups.partitioned.names import GroupName
            from tests.groups.partitioned.runtime import feeder

            feeder.fill(hr.client.log, GroupName("orders", "g"))
        with hr.join("orders", "g", "m") as member:
            for _, delivery in zip(range(count), member, strict=False):
                delivery.reject("torture")
        assert len(hr.dead_letters("orders/g", limit=count + 1)) == count
        doomed = Process(WORKER, "put-back", url, "orders/g")
        threshold = rng.randrange(1, count)
        wait_until(lambda: len(_left(hr, count)) <= threshold, "some to be put back", PATIENCE_S)
        doomed.kill()
        left = _left(hr, count)
        verdict.kills += bool(left)
        if left:
            process = Process(WORKER, "put-back", url, "orders/g")
            process.line()
            process.line()
            process.finish()
            process.kill()
        found = _put_back(hr, "orders.g" if kind == "elastic" else "orders")
        wanted = {b"%d" % n for n in range(count)}
        if _left(hr, count):
            verdict.findings.append("letters are left")
        if set(found) != wanted:
            verdict.findings.append(f"{len(wanted - set(found))} letters are lost")
        twice = [value for value, times in found.items() if times > 1]
        if twice:
            verdict.findings.append(f"{len(twice)} letters came back twice: {twice[:5]}")
    return verdict


def _left(hr: headrace.sync.Headrace, count: int) -> tuple[object, ...]:
    return hr.dead_letters("orders/g", limit=count + 1)


def _put_back(hr: headrace.sync.Headrace, stream: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for batch in hr.read(stream):
        for row in batch.to_pylist():
            if any(pair["key"] == PUT_BACK for pair in row["headers"] or ()):
                found[row["value"]] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeks", type=int, default=50)
    parser.add_argument("--letters", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    failed = False
    with ExitStack() as ends:
        folder = new_folder()
        server = ends.enter_context(running_postgres(folder / "pg")) if given.postgres else None
        runs = 0

        def place(what: str) -> tuple[str, Path]:
            nonlocal runs
            runs += 1
            own = folder / f"{what}-{runs}"
            own.mkdir(parents=True)
            url = str(own / "data") if server is None else create_database(server, f"{what}{runs}")
            return url, own

        def tell(what: str, seed: int, verdict: Verdict) -> None:
            nonlocal failed
            failed |= bool(verdict.findings)
            print(f"{what} seed {seed}: {verdict}", flush=True)

        for kind in ("static", "shared", "reader") if given.seeks else ():
            url, own = place("seek")
            tell(
                f"seek {kind}",
                given.seed,
                seeks_under_load(url, own, kind, given.seeks, given.seed),
            )
        for at in range(given.rounds if given.letters else 0):
            of: Kind = "elastic" if at % 2 else "static"
            url, own = place("letters")
            seed = given.seed + at
            tell(f"letters {of}", seed, letters_put_back(url, of, given.letters, seed))
    if failed:
        sys.exit(f"kept: {folder}")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
