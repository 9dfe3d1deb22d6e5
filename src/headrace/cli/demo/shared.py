"""The act with a shared group: the process that leads it is killed in mid-stream.

Workers subscribe to the flights from processes of their own; nobody tells them who does what.  One
of the processes leads the group beside its own work.  It is found and killed: its flights have to
go to others, and another process has to lead.  A worker that comes in its place is given a share.
What a worker notes of a flight commits in one transaction with the ack: the notes are the proof.
"""

from __future__ import annotations

import time

import msgspec

import headrace
from headrace.cli.demo.acts import STREAM, Stage
from headrace.cli.demo.crew import Crew, Orders, serve
from headrace.cli.demo.notes import prove, take_notes
from headrace.groups.consumer import ConsumerOptions
from headrace.groups.shared.core.settings import BorrowerSettings, LeaderSettings

GROUP, OUTPUT = "tower", "cleared"
SUBSCRIPTION = f"$share/{GROUP}/{STREAM}.>"
WORKERS, NEWCOMER = ("north", "east", "south", "west"), "zoe"
BATCH_EVENTS = 1_000

# Shorter than the defaults, so that nobody has to watch a lease run out for ten seconds.
LEADER = LeaderSettings(
    lease_ttl_ms=1500,
    heartbeat_ms=300,
    renew_segments_ms=500,
    borrower_timeout_ms=2000,
)
BORROWER = BorrowerSettings(find_leader_ms=200, ping_ms=300, ping_timeout_ms=1500, resend_ms=300)


class Takeover(msgspec.Struct):
    """What happened when the leader was killed."""

    killed: str
    at_s: float
    leader: str = ""
    """Who leads now."""
    leader_s: float = 0.0
    """How long nobody led."""
    pause_s: float = 0.0
    """The longest time in which no flight was cleared."""


async def lose_the_leader(stage: Stage) -> None:
    """A shared group over the flights, whose leader dies."""
    hr, total = stage.hr, stage.flights.num_rows
    await hr.create_stream(OUTPUT, subjects=[f"{OUTPUT}.>"], segments=2)
    await hr.shared_groups.declare(GROUP, f"{STREAM}.>", start="earliest", settings=LEADER)
    async with Crew(stage, __name__) as crew:
        for name in WORKERS:
            await crew.start(name, name)
        stage.say(f"  {', '.join(WORKERS)} subscribe to [bold]{SUBSCRIPTION}[/bold]")
        lost = await _watch(stage, crew, total)
        found = await hr.shared_groups.get(GROUP)
    stage.facts["cleared"] = await prove(stage, OUTPUT, stage.flights, "planes and routes")
    stage.facts |= {"takeover_s": round(lost.leader_s, 3), "pause_s": round(lost.pause_s, 3)}
    stage.check(
        f"the group went on under {lost.leader} without {lost.killed}, and has nothing left to do",
        lost.leader not in ("", lost.killed) and found.lag_events == 0,
    )


async def _watch(stage: Stage, crew: Crew, total: int) -> Takeover:
    """Until all is done: kill the leader at a quarter of it, and see who takes over."""
    began = moved_s = time.perf_counter()
    lost: Takeover | None = None
    before = 0
    async for done in crew.watch("clearing", OUTPUT, total):
        now_s = time.perf_counter()
        if lost is None:
            if 4 * done >= total:
                lost = await _kill_leader(stage, crew, done)
        else:
            lost.pause_s = max(lost.pause_s, now_s - max(moved_s, lost.at_s))
            if not lost.leader:
                await _look_for_leader(stage, crew, lost)
            elif done >= total:
                break
        if done > before:
            before, moved_s = done, now_s
    assert lost is not None
    took_s = now_s - began
    stage.say(f"  {done:,} flights cleared in {took_s:.1f} s; no pause over {lost.pause_s:.1f} s")
    return lost


async def _kill_leader(stage: Stage, crew: Crew, done: int) -> Takeover | None:
    """Kill the process that leads, and start another; None if nobody leads just now."""
    found = await stage.hr.shared_groups.get(GROUP)
    if found.leader is None:
        return None
    killed = _name(crew, found.leader)
    crew.kill(killed)
    at_s = time.perf_counter()
    units = sum(member.units for member in found.members if member.session == killed)
    stage.say(
        f"  {killed} leads the group, and works on {units} of its segments: it is killed "
        f"(SIGKILL) after {done:,} flights"
    )
    await crew.start(NEWCOMER, NEWCOMER)
    stage.say(f"  {NEWCOMER} subscribes in its place; nobody has to be told")
    return Takeover(killed=killed, at_s=at_s)


async def _look_for_leader(stage: Stage, crew: Crew, lost: Takeover) -> None:
    """See whether another process leads by now."""
    found = await stage.hr.shared_groups.get(GROUP)
    if found.leader is None or _name(crew, found.leader) == lost.killed:
        return
    lost.leader = _name(crew, found.leader)
    lost.leader_s = time.perf_counter() - lost.at_s
    stage.say(
        f"  {lost.leader} leads after {lost.leader_s:.1f} s (the lease is "
        f"{LEADER.lease_ttl_ms / 1000:g} s)"
    )


def _name(crew: Crew, peer: str) -> str:
    """Whose process a peer is: HOST-PID-NUMBER."""
    return crew.name_of(peer.rsplit("-", 2)[1])


# --- a worker ------------------------------------------------------------------------------


async def work(orders: Orders) -> None:
    """Note every batch as cleared, in one transaction with its ack."""
    options = ConsumerOptions(batch_events_max=BATCH_EVENTS)
    shared = headrace.SharedOptions(borrower=BORROWER, leader=LEADER)
    async with (
        orders.options.open_async(shared=shared) as hr,
        hr.session(orders.member, persistent=False, options=options) as session,
    ):
        await session.subscribe(SUBSCRIPTION)
        await take_notes(session.batches(), OUTPUT, orders.instance)


def main() -> None:
    """A worker, in a process of its own."""
    serve(work)
