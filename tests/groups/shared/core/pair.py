"""A leader and its store without a network, for tests that look at one step at a time."""

from __future__ import annotations

from typing import TypeVar

from headrace.groups.progress import Progress
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.messages import (
    Disconnect,
    FromBorrower,
    Grant,
    LeaderWanted,
    Message,
    Ping,
    Revoke,
    RevokeFinished,
    UnitReport,
    UpdateProgress,
)
from headrace.groups.shared.core.records import (
    Commit,
    LeaderEffect,
    Listing,
    SegmentInfo,
    StoredUnit,
    ToBorrower,
)
from headrace.groups.shared.core.settings import LeaderSettings

GROUP = "audit:orders.>"
M = TypeVar("M", bound=Message)


class Led:
    """A leader whose commits succeed as soon as they are asked for."""

    def __init__(
        self,
        *,
        token: int = 5,
        stored: tuple[StoredUnit, ...] = (),
        settings: LeaderSettings | None = None,
        hold_commits: bool = False,
    ) -> None:
        self.leader = Leader(
            GROUP,
            name="n1",
            token=token,
            stored=stored,
            settings=settings or LeaderSettings(),
            now_ms=0,
        )
        self.now_ms = 0
        self.revision = 0
        self.sent: list[Message] = []
        self.others: list[LeaderEffect] = []
        self.rows: dict[str, StoredUnit] = {row.unit: row for row in stored}
        self.hold_commits = hold_commits
        self.held: list[Commit] = []
        self._reports = 0

    def do(self, effects: list[LeaderEffect]) -> None:
        if not self.leader.deposed:
            effects = effects + self.leader.balance(self.now_ms)
        for effect in effects:
            match effect:
                case ToBorrower(message=message):
                    self.sent.append(message)
                case Commit():
                    self.held.append(effect)
                case _:
                    self.others.append(effect)
        if not self.hold_commits:
            self.commit()

    def commit(self) -> None:
        while self.held:
            commit = self.held.pop(0)
            for record in commit.progress:
                row = self.rows.get(record.unit, StoredUnit(record.unit))
                progress = row.progress.merge(record.progress)
                self.rows[record.unit] = StoredUnit(
                    record.unit, row.token, progress, record.finished
                )
            claimed = []
            for claim in commit.claims:
                row = self.rows.get(claim.unit, StoredUnit(claim.unit))
                self.rows[claim.unit] = StoredUnit(
                    claim.unit, claim.unit_token, row.progress, row.finished
                )
                claimed.append((claim.unit, row.progress))
            for unit in commit.forget:
                self.rows.pop(unit, None)
            self.do(self.leader.committed(commit.number, claimed, self.now_ms))

    def say(self, message: FromBorrower) -> None:
        self.do(self.leader.receive(message, self.now_ms))

    def segments(self, *infos: SegmentInfo, gone: tuple[str, ...] = ()) -> None:
        self.revision += 1
        listing = Listing(self.revision, infos, gone)
        self.do(self.leader.segments_listed(listing, self.now_ms))

    def join(self, *borrowers: str) -> None:
        for borrower in borrowers:
            session = borrower.partition(":")[0]
            self.say(LeaderWanted(GROUP, borrower, 0, session))
            self.ping(borrower)

    def ping(self, borrower: str) -> None:
        self.say(Ping(GROUP, borrower, self.leader.token, 1))

    def report(
        self,
        borrower: str,
        unit: str,
        *acked: tuple[int, int],
        final: bool = False,
        token: int | None = None,
        answered: bool = False,
    ) -> int:
        self._reports += 1
        unit_token = self.leader.units[unit].token if token is None else token
        report = UnitReport(unit, unit_token, acked, (), answered, final)
        self.say(UpdateProgress(GROUP, borrower, self.leader.token, self._reports, (report,)))
        return self._reports

    def accept_grants(self) -> None:
        """Every borrower acknowledges what it was granted."""
        for message in self.take(Grant):
            self.report(message.borrower, message.unit)

    def settle(self) -> None:
        """Everyone does what it is told, until there is nothing to do."""
        while any(isinstance(message, Grant | Revoke) for message in self.sent):
            self.accept_grants()
            for message in self.take(Revoke):
                self.hand_back(message.borrower, message.unit)

    def hand_back(self, borrower: str, unit: str) -> None:
        """A revoked unit is finished, and its end confirmed."""
        self.report(borrower, unit, final=True)
        token = self.leader.units[unit].token
        self.say(RevokeFinished(GROUP, borrower, self.leader.token, unit, token))

    def leave(self, borrower: str, *units: UnitReport) -> None:
        self.say(Disconnect(GROUP, borrower, self.leader.token, 999, units))

    def take(self, kind: type[M]) -> list[M]:
        """What was sent of one kind, taken out."""
        found = [message for message in self.sent if isinstance(message, kind)]
        self.sent = [message for message in self.sent if not isinstance(message, kind)]
        return found

    def owners(self) -> dict[str, list[str]]:
        return {borrower: sorted(units) for borrower, units in self.leader.borrowers.items()}

    def tick(self, after_ms: int, *, alive: tuple[str, ...] = ()) -> None:
        """Time goes by, in which only `alive` have pinged and the lease was renewed."""
        self.now_ms += after_ms
        self.leader.lease_renewed(self.now_ms)
        for borrower in alive:
            if borrower in self.leader.borrowers:
                self.ping(borrower)
        self.do(self.leader.tick(self.now_ms))


def open_segment(number: int, head: int = 10) -> SegmentInfo:
    return SegmentInfo(f"orders/{number}", head)


def progress(floor: int, *ranges: tuple[int, int]) -> Progress:
    return Progress(floor, ranges)
