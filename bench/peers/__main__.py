"""``python -m bench.peers``: rounds in turn on every system, medians, ratios and targets.

``--only publish consume strict latency``, in any choice, leaves out the rest.
Exit status 1 when a target is missed.  A peer that is not installed is left out and named.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import cyclopts
import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.harness import Result, at_least, at_most, percentile, save, show
from bench.peers import latency, log, nats, redis, servers
from bench.peers.work import Way, Work
from bench.postgres import database
from tests.postgres_server import postgres_machine

T = TypeVar("T")
Part = Literal["publish", "consume", "strict", "latency"]

app = cyclopts.App(name="python -m bench.peers", help_format="plaintext")

ROUNDS = 5
ON_POSTGRES, R3 = "Headrace on PostgreSQL", "NATS R3 sync always"

CONSUME_TIMES_NATS, CONSUME_TIMES_REDIS = 3.0, 1.5
STRICT_TIMES_NATS = 3.0
PUBLISH_TIMES_NATS, PUBLISH_TIMES_REDIS = 10.0, 4.0


class Delay(msgspec.Struct, frozen=True):
    """How long a system takes from publish to delivery; ``run`` gives milliseconds."""

    system: str
    survives: str
    run: Callable[[], latency.Times]


class Peers(msgspec.Struct):
    """Everything that takes part."""

    ways: list[Way]
    delays: list[Delay]
    missing: list[str]


def _start(stack: ExitStack, folder: Path) -> Peers:
    found = Peers(ways=list(log.ways(folder)), delays=[], missing=[])
    fresh = iter(range(1000))
    found.delays.append(
        Delay(
            log.SYSTEM,
            log.SURVIVES_PUBLISH,
            lambda: latency.from_headrace(str(folder / f"delay-{next(fresh)}")),
        )
    )
    machine = stack.enter_context(postgres_machine(max_connections="200"))
    found.delays.append(
        Delay(
            ON_POSTGRES,
            "power failure",
            lambda: latency.from_headrace(database(machine, f"delay{next(fresh)}")),
        )
    )
    if (program := servers.nats_program()) is None:
        found.missing.append("nats-server")
    else:
        for always in (False, True):
            server = servers.nats_server(program, folder / f"nats-{always}", sync_always=always)
            url = stack.enter_context(server)
            fresh_ways = nats.ways(url, sync_always=always)
            found.ways += fresh_ways
            found.delays.append(_delay(fresh_ways[0], latency.from_nats, url))
        cluster = servers.nats_cluster(program, folder / "cluster", sync_always=True)
        found.delays.append(
            Delay(R3, "power failure", partial(_on_cluster, stack.enter_context(cluster)))
        )
    if (program := servers.redis_program()) is None:
        found.missing.append("redis-server")
    else:
        for fsync in ("everysec", "always"):
            server_on = servers.redis_server(program, folder / f"redis-{fsync}", appendfsync=fsync)
            port = stack.enter_context(server_on)
            fresh_ways = redis.ways(port, appendfsync=fsync)
            found.ways += fresh_ways
            found.delays.append(_delay(fresh_ways[0], latency.from_redis, str(port)))
    return found


def _on_cluster(url: str) -> latency.Times:
    """On a stream of which each of three servers has a copy; they choose a leader first."""
    deadline = time.monotonic() + 30.0
    while True:
        try:
            return latency.from_nats(url, replicas=3)
        except Exception:  # the library has many kinds for "not yet"
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _delay(like: Way, run: Callable[[str], latency.Times], address: str) -> Delay:
    return Delay(like.system, like.survives, lambda: run(address))


Rates = dict[str, list[float]]
Delays = dict[str, list[latency.Times]]


def _measure(peers: Peers, rounds: int, console: Console) -> tuple[Rates, Delays]:
    """Every way once in each round; who goes first changes from round to round."""
    rates: Rates = {way.work.name + way.name: [] for way in peers.ways}
    delays: Delays = {delay.system: [] for delay in peers.delays}
    columns = (
        TextColumn("{task.description:<64}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        total = rounds * (len(peers.ways) + len(peers.delays))
        bar = progress.add_task("", total=total)
        for number in range(rounds):
            for way in _turned(peers.ways, number):
                progress.update(bar, description=f"{way.work.value}: {way.system}")
                rates[way.work.name + way.name].append(way.run())
                progress.advance(bar)
            for delay in _turned(peers.delays, number):
                progress.update(bar, description=f"publish to delivery: {delay.system}")
                delays[delay.system].append(delay.run())
                progress.advance(bar)
    return rates, delays


def _turned(items: list[T], by: int) -> Iterable[T]:
    first = by % max(1, len(items))
    return items[first:] + items[:first]


def _judge(ways: list[Way], rates: Rates, delays: Delays) -> list[Result]:
    """The ratios, each against the best way of a peer in the same round."""

    def of(work: Work, system: str, how: str = "") -> list[list[float]]:
        return [
            rates[way.work.name + way.name]
            for way in ways
            if way.work is work and way.system == system and way.how.startswith(how)
        ]

    def ratio(
        work: Work, ours: str, system: str, theirs: str, least: float | None, why: str
    ) -> list[Result]:
        mine, peer = of(work, log.SYSTEM, ours), of(work, system, theirs)
        if not mine or not peer:
            return []
        best = [max(rounds) for rounds in zip(*peer, strict=True)]
        own = [max(rounds) for rounds in zip(*mine, strict=True)]
        value = statistics.median(a / b for a, b in zip(own, best, strict=True))
        name = f"{work.value}, against {system}{why}"
        detail = f"{statistics.median(own):,.0f} against {statistics.median(best):,.0f} events/s"
        if least is None:
            return [Result(name, value, "x", detail=detail)]
        return [at_least(name, value, least, "x", detail)]

    publish, consume, strict = Work.PUBLISH, Work.CONSUME, Work.STRICT
    always, fsync = "NATS sync always", "Redis fsync always"
    confirmed, soon = "confirmed", "acks in passing"
    results = [
        *ratio(publish, "", always, "", PUBLISH_TIMES_NATS, ""),
        *ratio(publish, "", fsync, "", PUBLISH_TIMES_REDIS, ""),
        *ratio(consume, log.EVENT_BY_EVENT, "NATS", "", CONSUME_TIMES_NATS, ""),
        *ratio(consume, log.EVENT_BY_EVENT, "Redis", "", CONSUME_TIMES_REDIS, ""),
        *ratio(
            strict,
            log.STRICT_CONFIRMED,
            "NATS",
            "fetch 1, confirmed",
            STRICT_TIMES_NATS,
            f", acks {confirmed}",
        ),
        *ratio(strict, log.STRICT_SOON, "NATS", "", STRICT_TIMES_NATS, f", {soon}"),
    ]
    for share, word in ((0.5, "p50"), (0.99, "p99")):
        median = {
            system: statistics.median(percentile(times.delays, share) for times in rounds)
            for system, rounds in delays.items()
        }
        if always in median:
            name = f"publish (fsync) to delivery, two processes, {word}, against {always}"
            detail = f"{median[log.SYSTEM]:.2f} against {median[always]:.2f} ms"
            results.append(at_most(name, median[log.SYSTEM] / median[always], 1.0, "x", detail))
    return results + _judge_postgres(delays, always)


def _judge_postgres(delays: Delays, always: str) -> list[Result]:
    """PostgreSQL beside one server of NATS and beside three, medians."""
    if not {always, R3} <= delays.keys():
        return []

    def ratio(of: Callable[[latency.Times], list[float]], other: str) -> tuple[float, str]:
        ours, theirs = (
            statistics.median(statistics.median(of(times)) for times in delays[system])
            for system in (ON_POSTGRES, other)
        )
        return ours / theirs, f"{ours:.2f} against {theirs:.2f} ms"

    found = []
    for what, of, other, most in (
        ("publish to delivery", lambda times: times.delays, R3, 1.0),
        ("publish to delivery", lambda times: times.delays, always, 2.0),
        ("publish", lambda times: times.publishes, always, 1.5),
    ):
        value, detail = ratio(of, other)
        name = f"PostgreSQL: {what}, p50, against {other}"
        found.append(at_most(name, value, most, "x", detail))
    return found


def _show(console: Console, peers: Peers, rates: Rates, delays: Delays) -> None:
    for work in dict.fromkeys(way.work for way in peers.ways):
        table = Table(title=work.value, title_justify="left")
        for column in (
            "system",
            "how",
            "events/s",
            "lowest",
            "highest",
            "a confirmed one survives",
        ):
            table.add_column(column, justify="right" if column[-2:] in ("/s", "st") else "left")
        for way in peers.ways:
            if way.work is work:
                found = rates[way.work.name + way.name]
                shown = (statistics.median(found), min(found), max(found))
                table.add_row(way.system, way.how, *(f"{x:,.0f}" for x in shown), way.survives)
        console.print(table)
    if not peers.delays:
        return
    table = Table(title="publish to delivery, two processes, ms", title_justify="left")
    for column in ("system", "p50", "p99", "publish p50", "a confirmed publish survives"):
        table.add_column(column, justify="right" if column[0] == "p" else "left")
    for delay in peers.delays:
        rounds = delays[delay.system]
        figures = [
            statistics.median(percentile(times.delays, share) for times in rounds)
            for share in (0.5, 0.99)
        ]
        figures.append(statistics.median(percentile(times.publishes, 0.5) for times in rounds))
        table.add_row(delay.system, *(f"{x:.2f}" for x in figures), delay.survives)
    console.print(table)


@app.default
def main(
    *,
    rounds: Annotated[int, Parameter(help="rounds, every system once in each")] = ROUNDS,
    only: Annotated[
        list[Part] | None, Parameter(help="measure these and no more", consume_multiple=True)
    ] = None,
) -> int:
    """Measure the same work on Headrace and on its peers; status 1 when a target is missed."""
    console = Console(width=None if Console().is_terminal else 160)
    screen = Console(stderr=True)
    began = time.monotonic()
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        peers = _start(stack, folder)
        if only:
            peers.ways = [way for way in peers.ways if way.work.name.lower() in only]
            peers.delays = peers.delays if "latency" in only else []
        rates, delays = _measure(peers, rounds, screen)
    _show(console, peers, rates, delays)
    results = _judge(peers.ways, rates, delays)
    show(results)
    for name in peers.missing:
        console.print(f"{name} is not installed here: nothing was measured against it")
    console.print(
        f"medians of {rounds} rounds in turn, {time.monotonic() - began:.0f} s; load of the "
        f"machine {load:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores"
    )
    console.print(f"written to bench/results/{save(results).name}")
    return 0 if all(result.ok is not False for result in results) else 1


if __name__ == "__main__":
    sys.exit(app())
