"""How quickly a node answers: API, events, decisions, and pages in a browser.

A node of its own serves a catalog of 1,000 groups, 50 streams and 10,000 units, beside a stream of
10 million events and a group that has 10,000 units alone.  ``python -m bench.node_serving`` prints
the figures; ``--without-browser`` leaves Chromium out, ``--events 1000000`` makes less of a stream,
and ``--costs`` measures only what a node costs those who publish and consume.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import headrace
from bench import looking
from bench.harness import Result, at_least, at_most, show
from bench.node_hours import Node, Page, serving
from bench.publish import ROWS as PUBLISHED_ROWS
from bench.publish import batch
from headrace.catalog import Tx, batches
from headrace.catalog.batches import NewBatch
from headrace.catalog.streams import StreamConfig
from headrace.groups import decisions
from headrace.groups.decisions import Decision, What
from headrace.groups.shared.admin import Groups
from headrace.log.events import Event, batch_of, encode_blob, layout_of
from headrace.log.log import Log
from headrace.log.open import open_log

EVENTS = 10_000_000
ROWS = 10_000
"""Of a batch."""
WIDE_UNITS = 10_000
BATCHES = 400
"""That are published and consumed in a round."""
ROUNDS = 7
COST_MAX = 1.03
ASKED = 30
DECIDED = 20


def fill_large(log: Log, events: int) -> None:
    """A stream of many events whose values are JSON: the same batch again and again."""
    log.create_stream("large", StreamConfig(subjects=("large.*",)))
    segment = log.stream("large").segments[0]
    rows = [Event(subject=f"large.{n % 7}", value=b'{"total": %d}' % n) for n in range(ROWS)]
    made = batch_of(rows, 1)
    blob = encode_blob(made)
    new = NewBatch(
        segment_id=segment.id,
        rows=ROWS,
        size_bytes=len(blob),
        max_ts_us=1,
        layout=layout_of(made.schema),
        checksum=zlib.crc32(blob),
        data=blob,
    )

    def add(tx: Tx) -> None:
        for _ in range(min(100, events // ROWS)):
            batches.append(tx, [new])

    for _ in range(max(1, events // ROWS // 100)):
        log.catalog.write(add)


def fill_wide(log: Log) -> None:
    """A group of very many units."""
    for number in range(WIDE_UNITS // 1_000):
        subjects = (f"wide{number}.*",)
        log.create_stream(f"wide{number}", StreamConfig(subjects=subjects, partitions=1_000))
    Groups(log).declare("wide", ">", start="earliest")


def asked(node: Node, path: str) -> tuple[float, bytes]:
    """(milliseconds, answer)."""
    begun_s = time.perf_counter()
    answer = node.ask(path)
    body = answer.read()
    took_ms = 1_000 * (time.perf_counter() - begun_s)
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {body[:300]!r}")
    return took_ms, body


def api(node: Node, events: int) -> list[Result]:
    """Answers from memory, and events."""
    found = []
    for what, path in (("overview", "overview"), ("a page of groups", "groups?sort=-lag_events")):
        took = statistics.median(asked(node, f"/api/v1/{path}")[0] for _ in range(ASKED))
        found.append(at_most(f"API: {what}", took, 50, "ms"))
    before_s = node.cpu_s
    for _ in range(ASKED):
        asked(node, "/metrics")
    each_ms = 1_000 * (node.cpu_s - before_s) / ASKED
    found.append(at_most("metrics, asked again", each_ms, 10, "ms CPU"))
    path = "/api/v1/streams/large/events?start=earliest&limit=50"
    first = statistics.median(asked(node, path)[0] for _ in range(5))
    found.append(at_most(f"first page of {events:,} events", first, 300, "ms"))
    looked = spent_s = 0.0
    start = "earliest"
    while start and looked < events:
        took_ms, body = asked(
            node, f"/api/v1/streams/large/events?start={start}&limit=50&text=none"
        )
        part = json.loads(body)
        looked, spent_s = looked + part["looked_events"], spent_s + took_ms / 1_000
        start = part["next"]
    found.append(at_least("filter scan", looked / spent_s, 1_000_000, "events/s"))
    return found


def decided(log: Log, node: Node, *, groups: str, most_s: float, busy: bool) -> Result:
    """From the commit of a decision until a listener has it."""
    tag = "busy" if busy else "still"
    heard: dict[str, float] = {}
    news = threading.Condition()

    def listen() -> None:
        try:
            answer = node.ask("/api/v1/live")
            text = b""
            while part := answer.read1(1 << 16):
                text += part
                *whole, text = text.split(b"\n\n")
                with news:
                    for each in whole:
                        for at in range(DECIDED):
                            if f"{tag}-{at}.".encode() in each:
                                heard.setdefault(f"{at}", time.perf_counter())
                    news.notify_all()
        except OSError:
            pass

    threading.Thread(target=listen, daemon=True).start()
    units = looking.readers_of(log) if busy else []
    ending = threading.Event()

    def change() -> None:
        turn = 0
        while not ending.wait(0.5):
            turn += 1
            looking.ack(log, units, 1_000 + turn, step=1)

    changing = threading.Thread(target=change, daemon=True)
    if busy:
        changing.start()
    time.sleep(3)
    took = []
    for at in range(DECIDED):
        _decide(log, f"{tag}-{at}.")
        begun_s = time.perf_counter()
        with news:
            news.wait_for(partial(heard.__contains__, f"{at}"), 15)
        took.append(heard.get(f"{at}", begun_s + 15) - begun_s)
        time.sleep(0.3)
    ending.set()
    if busy:
        changing.join()
    p95 = sorted(took)[int(0.95 * len(took))]
    return at_most(f"a decision is heard, {groups}", p95, most_s, "s p95")


def decided_among_few(place: Path, groups: str) -> Result:
    """A catalog of its own, where nothing else changes."""
    log = open_log(place)
    looking.fill(log, 100)
    with serving(place) as node:
        found = decided(log, node, groups=groups, most_s=1, busy=False)
    log.catalog.close()
    return found


def _decide(log: Log, reason: str) -> None:
    one = Decision(what=What.WAITS, reason=reason, target="m1")
    locks = decisions.locks("s0/g0")
    log.catalog.write(lambda tx: decisions.record(tx, "s0/g0", [one]), locks=locks)


LONGEST = """() => {
  window.longest = 0;
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) window.longest = Math.max(window.longest, each.duration);
  }).observe({ entryTypes: ["longtask"] });
}"""


def pages(log: Log, node: Node, units: list[tuple[str, int]]) -> list[Result]:
    """The overview, a change of all its rows, and a group of very many units."""
    page = Page(node)
    view = page.page
    base = node.address

    def shown_ms(path: str, selector: str) -> float:
        took = []
        for _ in range(3):
            begun_s = time.perf_counter()
            view.goto(base + path)
            view.wait_for_selector(selector)
            took.append(1_000 * (time.perf_counter() - begun_s))
        return statistics.median(took)

    found = [at_most("overview interactive", shown_ms("/", "hr-overview table tr td"), 1_000, "ms")]
    session: Any = page._session
    view.evaluate(LONGEST)
    before = _script_s(session)
    changes = 5
    for turn in range(changes):
        looking.ack(log, units, 3_000 + turn, step=1)
        time.sleep(2.5)
    each_ms = 1_000 * (_script_s(session) - before) / changes
    found.append(at_most("a change of all rows, main thread", each_ms, 50, "ms"))
    longest = float(view.evaluate("window.longest"))
    found.append(Result("its longest task beyond 50 ms", longest, "ms"))
    wide = "/groups/%24share%2Fwide%2F%3E"
    took = shown_ms(wide, "hr-group .sub:has-text('in all')")
    found.append(at_most(f"group of {WIDE_UNITS:,} units shown", took, 1_500, "ms"))
    page.close()
    return found


def _script_s(session: Any) -> float:
    found = session.send("Performance.getMetrics")["metrics"]
    return float({each["name"]: each["value"] for each in found}["TaskDuration"])


# --- what it costs the others --------------------------------------------------------------

LISTENS = """
import http.client, sys
made = http.client.HTTPConnection(sys.argv[1])
made.request("GET", "/api/v1/live", headers={"authorization": "Bearer " + sys.argv[2]})
answer = made.getresponse()
print("listens", flush=True)
while answer.read1(1 << 16):
    pass
"""


class Spent(msgspec.Struct, frozen=True):
    """What one program took to publish and to consume, without the node's own."""

    published_s: float
    published_cpu_s: float
    consumed_s: float
    consumed_cpu_s: float


async def _published_and_consumed(place: Path) -> Spent:
    data = batch()
    async with headrace.open(place) as hr:
        await hr.create_stream("bench", subjects=["bench.>"], partitions=4)
        await hr.groups.create_static("bench", "g", max_members=4, members=["worker"])
        times = [(time.perf_counter(), time.process_time())]
        for _ in range(BATCHES):
            await hr.append("bench", data)
        times.append((time.perf_counter(), time.process_time()))
        left = BATCHES * PUBLISHED_ROWS
        async with hr.join("bench", "g", member="worker") as member:
            async for delivery in member:
                delivery.ack_soon()
                left -= 1
                if not left:
                    break
            await member.flush()
            times.append((time.perf_counter(), time.process_time()))
    (wall_0, cpu_0), (wall_1, cpu_1), (wall_2, cpu_2) = times
    return Spent(wall_1 - wall_0, cpu_1 - cpu_0, wall_2 - wall_1, cpu_2 - cpu_1)


@contextmanager
def _listened(place: Path) -> Iterator[None]:
    """A node, and a program that hears all that changes."""
    with serving(place) as node:
        words = [sys.executable, "-c", LISTENS, node.address.removeprefix("http://"), node.token]
        listener = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listens\n"
        try:
            yield
        finally:
            listener.kill()
            listener.wait()


def costs() -> list[Result]:
    """With a node and one who listens against without, in turn, each on a catalog of its own."""
    found: list[tuple[Spent, Spent]] = []

    def spent(*, node: bool) -> Spent:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            place = Path(name) / "data"
            open_log(place).catalog.close()
            if not node:
                return asyncio.run(_published_and_consumed(place))
            with _listened(place):
                return asyncio.run(_published_and_consumed(place))

    spent(node=False)
    for number in range(ROUNDS):
        # Whoever goes first in a round is first half of the time.
        first = spent(node=bool(number % 2))
        second = spent(node=not number % 2)
        found.append((second, first) if number % 2 else (first, second))
    told = []
    for field in Spent.__struct_fields__:
        ratios = [getattr(ours, field) / getattr(base, field) for base, ours in found]
        what, _, kind = field.removesuffix("_s").partition("_")
        name = f"{what} beside a node, {'CPU' if kind else 'time'}"
        each = " ".join(f"{ratio:.3f}" for ratio in ratios)
        told.append(
            at_most(name, statistics.median(ratios), COST_MAX, "x of without", f"rounds {each}")
        )
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--without-browser", action="store_true")
    parser.add_argument("--costs", action="store_true")
    wanted = parser.parse_args()
    if wanted.costs:
        show(costs())
        return
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        place = Path(name) / "data"
        log = open_log(place)
        looking.fill(log)
        looking.ack(log, looking.readers_of(log), 0)
        fill_large(log, wanted.events)
        with serving(place) as node:
            found += api(node, wanted.events)
            found.append(decided_among_few(Path(name) / "few", "100 groups"))
            every = "1,000 groups change"
            found.append(decided(log, node, groups=every, most_s=2.5, busy=True))
        if not wanted.without_browser:
            units = looking.readers_of(log)
            fill_wide(log)
            with serving(place) as node:
                found += pages(log, node, units)
        log.catalog.close()
    show(found + costs())


if __name__ == "__main__":
    main()
