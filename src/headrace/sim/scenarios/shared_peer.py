"""A peer of the shared scenario: a registry, and the leaders it has won."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import ProtocolError
from headrace.groups.progress import Progress
from headrace.groups.shared.core import records, registry
from headrace.groups.shared.core.assignment import AssignmentStatus
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.messages import FromBorrower, Message, UpdateProgress
from headrace.groups.shared.core.pace import Pace
from headrace.groups.shared.core.settings import LeaderSettings
from headrace.sim.store import Conflict, Done, Outcome, Refused, Snapshot, StoreConflictError
from headrace.sim.world import Process

if TYPE_CHECKING:
    from headrace.sim.scenarios.shared import SharedScenario


LEADER_SETTINGS = LeaderSettings(
    stall_timeout_ms=8000,
    revoke_timeout_ms=4000,
    lease_ttl_ms=6000,
    heartbeat_ms=2000,
    bench_ms_max=60_000,
)
RANKS = {status: rank for rank, status in enumerate(AssignmentStatus)}


class Asked(msgspec.Struct, frozen=True):
    """A session asks the registry of its peer."""

    message: FromBorrower


def lease_name(group: str) -> str:
    """The lease of a group's leader."""
    return f"leader {group}"


def run_commit(tx: Snapshot, group: str, commit: records.Commit) -> list[tuple[str, Progress]]:
    """A leader's commit as the catalog will run it."""
    tx.check_lease(lease_name(group), commit.token)
    for record in commit.progress:
        entry = tx.get(group, record.unit)
        stored = entry.value if entry else records.StoredUnit(record.unit)
        tx.put(
            group,
            record.unit,
            msgspec.structs.replace(
                stored,
                progress=stored.progress.merge(record.progress),
                finished=stored.finished or record.finished,
            ),
        )
    claimed = []
    for claim in commit.claims:
        entry = tx.get(group, claim.unit)
        stored = entry.value if entry else records.StoredUnit(claim.unit)
        tx.claim(group, claim.unit, claim.borrower, claim.unit_token)
        tx.put(group, claim.unit, msgspec.structs.replace(stored, token=claim.unit_token))
        claimed.append((claim.unit, stored.progress))
    for unit in commit.forget:
        tx.delete(group, unit)
    return claimed


class Peer(Process):
    """A peer: a registry, and the leaders it has won."""

    scenario: SharedScenario

    def start(self) -> None:
        self.registry = registry.Registry(self.name)
        self.leaders: dict[str, Leader] = {}
        self.loading: dict[str, registry.StartLeader] = {}
        self.ranks: dict[tuple[str, int, str, int], int] = {}
        self.decided: dict[str, records.Decision] = {}
        self.after(LEADER_SETTINGS.tick_ms, "tick")

    def receive(self, source: str, message: Any) -> None:  # noqa: ARG002
        if isinstance(message, Asked):
            self._do(self.registry.wanted(message.message, self.now_ms))
        else:
            self._do(self.registry.received(message, self.now_ms))

    def timer(self, tag: Any) -> None:
        match tag:
            case "tick":
                for group, leader in list(self.leaders.items()):
                    self._lead(group, leader.tick(self.now_ms))
                self.after(LEADER_SETTINGS.tick_ms, "tick")
            case registry.StartLeader() as start:
                self._load(start)
            case ("gathered", group, token):
                gathering = self.leaders.get(group)
                if gathering is not None and gathering.token == token:
                    self._lead(group, gathering.gathered(self.now_ms))

    def _do(self, effects: list[registry.RegistryEffect]) -> None:
        for effect in effects:
            match effect:
                case registry.LookUp(group=group):
                    self._look_up(group)
                case registry.Forward(peer=peer, message=message):
                    self.send(peer, message)
                case registry.ToLocalLeader(message=message):
                    self._to_leader(message)
                case registry.StartLeader() as start:
                    self.loading[start.group] = start
                    self._load(start)
                case registry.Reply(message=message):
                    self._to_session(message)

    def _look_up(self, group: str) -> None:
        def claim(tx: Snapshot) -> tuple[str, Any]:
            lease = tx.lease(lease_name(group))
            if lease is not None and lease.expires_ms > tx.now_ms:
                return ("found", lease.owner)
            ttl_ms = LEADER_SETTINGS.lease_ttl_ms
            return ("won", tx.acquire_lease(lease_name(group), self.name, ttl_ms).token)

        self.submit(("look up", group, self.now_ms), claim)

    def _load(self, start: registry.StartLeader) -> None:
        """Read the group; again after a while, until it works or the lease is gone."""
        if self.loading.get(start.group) != start:
            return
        if self.now_ms - start.sent_ms > LEADER_SETTINGS.lease_ttl_ms:
            del self.loading[start.group]
            self.registry.failed(start.group)
            return

        def read(tx: Snapshot) -> list[records.StoredUnit]:
            tx.check_lease(lease_name(start.group), start.token)
            return [entry.value for _, entry in tx.scan(start.group)]

        self.submit(("load", start), read)
        self.after(500, start)

    def stored(self, tag: Any, outcome: Outcome) -> None:
        match tag, outcome:
            case ("look up", group, sent_ms), Done(value=("won", token)):
                self.world.reach("leader.elected")
                self._do(self.registry.won(group, token, sent_ms))
            case ("look up", group, _), Done(value=("found", peer)):
                self._do(self.registry.found(group, peer, self.now_ms))
            case ("look up", group, _), _:
                self.registry.failed(group)
            case ("load", start), Done(value=rows) if self.loading.get(start.group) == start:
                self._start_leader(start, rows)
            case ("load", start), Conflict() if self.loading.get(start.group) == start:
                del self.loading[start.group]
                self.registry.failed(start.group)
            case ("lead", group, token, what), _:
                leader = self.leaders.get(group)
                if leader is not None and leader.token == token:
                    self._answer(leader, what, outcome)

    def _start_leader(self, start: registry.StartLeader, rows: list[records.StoredUnit]) -> None:
        del self.loading[start.group]
        leader = Leader(
            start.group,
            name=self.name,
            token=start.token,
            stored=rows,
            settings=self.scenario.leader_settings,
            now_ms=self.now_ms,
            lease_sent_ms=start.sent_ms,
            pace=Pace(self.scenario.gather_rate),
        )
        self.leaders[start.group] = leader
        if rows:
            self.world.reach("leader.restored")
        self.note("leads %s with token %s", start.group, start.token)
        self._lead(start.group, leader.tick(self.now_ms))
        if self.leaders.get(start.group) is leader:
            self._do(self.registry.started(start.group, start.token))
        else:
            # The lease ran out while the state was loaded: this one never led.
            self.registry.failed(start.group)

    def _answer(self, leader: Leader, what: Any, outcome: Outcome) -> None:
        """Tell a leader what came of its request."""
        group, now_ms = leader.group, self.now_ms
        match what, outcome:
            case records.Commit(number=number), Done(value=claimed):
                self._lead(group, leader.committed(number, claimed, now_ms))
            case records.Commit(number=number), Conflict(reason=reason):
                failed = leader.commit_failed(number, reason, lost=True)
                self._lead(group, failed)
            case records.Commit(number=number), Refused(reason=reason):
                failed = leader.commit_failed(number, reason, lost=False)
                self._lead(group, failed)
            case records.ListSegments(), Done(value=listing):
                self._lead(group, leader.segments_listed(listing, now_ms))
            case records.RenewLease(sent_ms=sent_ms), Done():
                self._lead(group, leader.lease_renewed(sent_ms))
            case records.RenewLease(), Conflict(reason=reason):
                self.world.reach("leader.lease lost")
                self._lead(group, leader.lease_lost(reason))

    def _to_leader(self, message: Message) -> None:
        leader = self.leaders[message.group]
        if isinstance(message, UpdateProgress) and leader.keep(message, self.now_ms):
            self.world.reach("leader.keeps a report")
            return
        try:
            effects = leader.receive(message, self.now_ms)
        except ProtocolError as error:
            self.note("refuses: %s", error)
            self.world.reach(f"leader.refused {type(error).__name__}")
            known = message.token == leader.token and message.borrower in leader.borrowers
            self.world.require(
                not (known and error.replies),
                "nobody is sent away without a reason",
                f"{message.borrower} is told to begin again: {error}",
            )
            for reply in error.replies:
                self._to_session(reply)
            return
        self._lead(message.group, effects)

    def _lead(self, group: str, effects: list[records.LeaderEffect]) -> None:
        leader = self.leaders.get(group)
        if leader is not None and not leader.deposed:
            effects = effects + leader.balance(self.now_ms)
            self._watch(leader)
        for effect in effects:
            match effect:
                case records.ToBorrower(message=message):
                    self._to_session(message)
                case records.StepDown(reason=reason):
                    self._step_down(group, reason)
                case records.Gather(for_ms=for_ms) if leader is not None:
                    self.world.reach("leader.gathers")
                    self.after(for_ms, ("gathered", group, leader.token))
                case _ if leader is not None:
                    self._request(leader, effect)

    def _watch(self, leader: Leader) -> None:
        """Assignments only move forward; decisions are counted as states reached."""
        for unit, state in leader.units.items():
            if state.status is AssignmentStatus.FREE:
                continue
            key = (leader.group, leader.token, unit, state.token)
            before = self.ranks.get(key, 0)
            rank = self.ranks[key] = RANKS[state.status]
            if rank != before:
                self.world.reach(f"assignment.{state.status}")
            self.world.require(
                rank >= before,
                "assignments only move forward",
                f"{unit} of {leader.group} is {state.status} again",
            )
        decided = self.decided.get(leader.group)
        for decision in reversed(leader.decisions):
            if decision is decided:
                break
            reason = decision.reason.partition(":")[0]
            self.world.reach(f"decision.{decision.what} ({reason})")
        if leader.decisions:
            self.decided[leader.group] = leader.decisions[-1]

    def _request(self, leader: Leader, effect: records.LeaderEffect) -> None:
        group = leader.group
        tag = ("lead", group, leader.token, effect)
        match effect:
            case records.Commit() as commit:
                self.note("commits %s", commit)
                self.submit(tag, lambda tx: self._run_commit(tx, group, commit))
            case records.ListSegments(after_revision=revision):
                self.submit(tag, lambda _: self.scenario.listing(revision))
            case records.RenewLease(token=token, ttl_ms=ttl_ms):
                self.submit(tag, lambda tx: tx.renew_lease(lease_name(group), token, ttl_ms))

    def _run_commit(
        self, tx: Snapshot, group: str, commit: records.Commit
    ) -> list[tuple[str, Progress]]:
        try:
            return run_commit(tx, group, commit)
        except StoreConflictError as conflict:
            self.note("is fenced: %s", conflict)
            self.world.reach("leader.fenced")
            raise

    def _step_down(self, group: str, reason: str) -> None:
        leader = self.leaders.pop(group)
        self.note("steps down from %s: %s", group, reason)
        self.world.reach("leader.stepped down")
        self.registry.stopped(group, leader.token)
        self.submit("release", lambda tx: tx.release_lease(lease_name(group), leader.token))

    def _to_session(self, message: Any) -> None:
        self.send(message.borrower.partition(":")[0], message)
