"""What a leader still has to store, and what it may say once that is durable.

*One commit at a time.*  Whatever is noted while a commit is under way goes into the next.  An idle
leader therefore stores a report at once, and a busy one as fast as the store allows.  Only under
very many reports does the leader delay the next commit (``pace.py``), since each costs more
than what it stores.  A commit is kept as it was until it is answered: it is idempotent, so it can
be sent again.
"""

from __future__ import annotations

import msgspec

from headrace.groups.shared.core.assignment import UnitState
from headrace.groups.shared.core.messages import Unit
from headrace.groups.shared.core.records import ClaimRecord, Commit, ProgressRecord


class Entry(msgspec.Struct, frozen=True):
    """A commit under way, and what may be said when it is durable."""

    commit: Commit
    sent_ms: int
    confirmations: tuple[tuple[str, int], ...]
    """(borrower, report) to be confirmed."""
    finals: tuple[tuple[Unit, int], ...]
    """(unit, token) whose final progress it holds."""


class Ledger:
    """Gathers what is to be stored; at most one commit is under way."""

    def __init__(self, token: int) -> None:
        self._token = token
        self._progress: dict[Unit, UnitState] = {}
        self._claims: dict[Unit, UnitState] = {}
        self._forget: dict[Unit, None] = {}
        self._confirmations: list[tuple[str, int]] = []
        self._under_way: Entry | None = None
        self._commits = 0

    def snapshot(self) -> tuple[object, ...]:
        """Everything in it as comparable values, without the numbers of commits."""
        entry = self._under_way
        return (
            tuple(self._progress),
            tuple(self._claims),
            tuple(self._forget),
            tuple(self._confirmations),
            entry
            and (entry.commit.progress, entry.commit.claims, entry.confirmations, entry.finals),
        )

    @property
    def noted(self) -> bool:
        """Whether there is something to store."""
        return bool(self._progress or self._claims or self._forget)

    @property
    def busy(self) -> bool:
        """Whether a commit is under way, or a report waits to be confirmed."""
        return self._under_way is not None or bool(self._confirmations)

    # --- noting ---

    def save(self, state: UnitState) -> None:
        """Store a unit's progress, as it is then, with the next commit."""
        self._progress[state.unit] = state

    def claim(self, state: UnitState) -> None:
        """The owner of a unit is to be stored."""
        self._claims[state.unit] = state

    def withdraw(self, state: UnitState) -> None:
        """A claim that was not sent yet is not wanted any more."""
        self._claims.pop(state.unit, None)

    def forget(self, state: UnitState) -> None:
        """A unit is to be deleted."""
        self._progress.pop(state.unit, None)
        self._forget[state.unit] = None

    def confirm(self, borrower: str, report: int) -> None:
        """A report is to be confirmed when everything noted so far is durable."""
        self._confirmations.append((borrower, report))

    # --- storing ---

    def next_commit(self, now_ms: int) -> Commit | None:
        """A commit of everything noted, if there is something and none is under way."""
        if self._under_way is not None:
            return None
        if not (self._progress or self._claims or self._forget):
            return None
        self._commits += 1
        progress, finals = [], []
        for unit, state in self._progress.items():
            progress.append(ProgressRecord(unit, state.progress, state.consumed))
            if state.final:
                finals.append((unit, state.token))
        claims: tuple[ClaimRecord, ...] = ()
        forget: tuple[Unit, ...] = ()
        if self._claims:
            claims = tuple(ClaimRecord(u, s.borrower, s.token) for u, s in self._claims.items())
            self._claims = {}
        if self._forget:
            forget = tuple(self._forget)
            self._forget = {}
        commit = Commit(self._commits, self._token, tuple(progress), claims, forget)
        self._under_way = Entry(commit, now_ms, tuple(self._confirmations), tuple(finals))
        self._progress, self._confirmations = {}, []
        return commit

    def settled_confirmations(self) -> list[tuple[str, int]]:
        """Reports that may be confirmed because nothing is left to be stored."""
        if self._under_way is not None or self._progress or not self._confirmations:
            return []
        settled, self._confirmations = self._confirmations, []
        return settled

    def done(self, number: int) -> Entry | None:
        """A commit is durable; None if it is not the one under way."""
        entry = self._under_way
        if entry is None or entry.commit.number != number:
            return None
        self._under_way = None
        return entry

    def refused(self, number: int) -> bool:
        """A commit was refused; False if it is not the one under way.  It is due again at once."""
        entry = self._under_way
        if entry is None or entry.commit.number != number:
            return False
        self._under_way = msgspec.structs.replace(entry, sent_ms=-(2**62))
        return True

    def retry(self, now_ms: int, timeout_ms: int) -> Commit | None:
        """The commit under way, if it was refused or not answered in time."""
        entry = self._under_way
        if entry is None or now_ms - entry.sent_ms < timeout_ms:
            return None
        self._under_way = msgspec.structs.replace(entry, sent_ms=now_ms)
        return entry.commit
