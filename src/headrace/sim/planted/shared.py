"""Planted bugs of shared groups; the first four are defects known from the field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from headrace.errors import UnexpectedMessageError
from headrace.groups.progress import Progress
from headrace.groups.shared.core import balance
from headrace.groups.shared.core.assignment import AssignmentStatus, UnitState
from headrace.groups.shared.core.borrower import Borrower
from headrace.groups.shared.core.holdings import Holdings
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.messages import (
    Grant,
    Invalidate,
    ProgressConfirmed,
    UpdateProgress,
)
from headrace.groups.shared.core.records import Commit, ToBorrower
from headrace.log.order import Order
from headrace.sim.planted import PlantedBug, by_search, by_seeds, patched


def by_golden_shares() -> str | None:
    """A hunt through shares that are known to be right."""
    cases: tuple[tuple[int, dict[str, int], dict[str, int]], ...] = (
        (3, {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (5, {"a": 1, "b": 1, "c": 3}, {"a": 2, "b": 1, "c": 2}),
        (4, {"a": 0, "b": 4}, {"a": 2, "b": 2}),
        (1, {"a": 0, "b": 1}, {"a": 0, "b": 1}),
    )
    for units, loads, expected in cases:
        shares = balance.shares_by_count(units, loads)
        if shares != expected:
            return f"golden shares: {units} units over {loads} became {shares}"
    return None


def _forgets_finished(original: Any) -> Any:
    def finish(self: Holdings, state: UnitState, reason: str, now_ms: int) -> Any:
        effects = original(self, state, reason, now_ms)
        state.gone = True
        if state.status is AssignmentStatus.FREE:
            self._forget_unit(state)
        return effects

    return finish


def _regrants_on_progress(original: Any) -> Any:
    def apply(self: Leader, member: Any, state: UnitState, report: Any, now_ms: int) -> Any:
        changed = original(self, member, state, report, now_ms)
        if state.status is AssignmentStatus.REVOKING and not state.final:
            state.status = AssignmentStatus.GRANTED
            member.load += 1
            self._holdings.in_transition.pop(state.unit, None)
        return changed

    return apply


def _invalidates_after_hand_over(original: Any) -> Any:
    def revoke_finished(self: Leader, member: Any, message: Any) -> Any:
        state = self.units.get(message.unit)
        if state is None or state.borrower != member.borrower:
            reply = Invalidate(self.group, member.borrower, self.token, "no such assignment")
            raise UnexpectedMessageError("no assignment", state="leading", replies=(reply,))
        return original(self, member, message)

    return revoke_finished


def _grants_from_the_floor(original: Any) -> Any:
    def grant(self: Holdings, state: UnitState, now_ms: int) -> Any:
        effects = []
        for effect in original(self, state, now_ms):
            if isinstance(effect, ToBorrower) and isinstance(effect.message, Grant):
                begin = Progress(effect.message.progress.floor)
                effect = ToBorrower(msgspec.structs.replace(effect.message, progress=begin))
            effects.append(effect)
        return effects

    return grant


def _keeps_the_token(original: Any) -> Any:
    def assign(self: Holdings, state: UnitState, member: Any, now_ms: int) -> None:
        if state.token:
            state.token -= 1
        original(self, state, member, now_ms)

    return assign


def _confirms_at_once(original: Any) -> Any:
    def take(self: Leader, message: Any, now_ms: int) -> Any:
        effects = original(self, message, now_ms)
        if isinstance(message, UpdateProgress):
            confirmed = ProgressConfirmed(self.group, message.borrower, self.token, message.report)
            effects = [*effects, ToBorrower(confirmed)]
        return effects

    return take


def _grants_before_the_claim(original: Any) -> Any:
    def settle(self: Leader, now_ms: int) -> Any:
        effects = original(self, now_ms)
        commits = [effect for effect in effects if isinstance(effect, Commit)]
        known = self.progress_of
        early = [
            Grant(self.group, c.borrower, self.token, c.unit, c.unit_token, known(c.unit))
            for commit in commits
            for c in commit.claims
        ]
        return [*(ToBorrower(grant) for grant in early), *effects]

    return settle


def _opens_successors_early(original: Any) -> Any:
    return _with_fewer_predecessors(original, 0)


def _opens_after_the_first_predecessor(original: Any) -> Any:
    return _with_fewer_predecessors(original, 1)


def _with_fewer_predecessors(original: Any, count: int) -> Any:
    def learn(self: Holdings, found: Any, now_ms: int) -> None:
        infos = [msgspec.structs.replace(i, predecessors=i.predecessors[:count]) for i in found]
        original(self, infos, now_ms)

    return learn


@contextmanager
def _empty_segments_end_early() -> Iterator[None]:
    """A leader takes a segment that is sealed and acked for finished, and nothing holds it back."""
    consumed = property(lambda self: self.end is not None and self.acked.floor >= self.end)
    with (
        patched(UnitState, "consumed", lambda _: consumed),
        patched(Order, "finish", lambda _: Order.leave),
    ):
        yield


def _forgets_tokens(original: Any) -> Any:
    def restore(self: Holdings, row: Any) -> None:
        original(self, msgspec.structs.replace(row, token=0))

    return restore


def _ignores_transactions(original: Any) -> Any:
    def committed(self: Leader, number: int, claimed: Any, now_ms: int) -> Any:
        known = [
            (unit, self.progress_of(unit) if unit in self.units else progress)
            for unit, progress in claimed
        ]
        return original(self, number, known, now_ms)

    return committed


def _last_writer_wins(_: Any) -> Any:
    return lambda _self, other: other


def _throws_goodbyes_away(original: Any) -> Any:
    def disconnect(self: Leader, member: Any, message: Any, now_ms: int) -> Any:
        return original(self, member, msgspec.structs.replace(message, units=()), now_ms)

    return disconnect


def _asks_once(original: Any) -> Any:
    def find(self: Borrower, now_ms: int) -> Any:
        effects = original(self, now_ms)
        self._find_due_ms = 2**62
        return effects

    return find


def _does_nothing(_: Any) -> Any:
    return lambda _self, _now_ms: []


def _answers_strangers(original: Any) -> Any:
    def answers(self: Leader, ping: Any, now_ms: int) -> bool:
        original(self, ping, now_ms)
        return True

    return answers


def _gathers_for_ever(original: Any) -> Any:
    def gathered(self: Leader, now_ms: int) -> Any:
        effects = original(self, now_ms)
        self.gather()
        return effects

    return gathered


def _forgets_what_is_closed(original: Any) -> Any:
    def grant(self: Borrower, message: Any) -> Any:
        self._closed.clear()
        return original(self, message)

    return grant


def _shares_by_name(_: Any) -> Any:
    def shares(units: int, loads: Any) -> Any:
        base, larger = divmod(units, len(loads)) if loads else (0, 0)
        return {name: base + (rank < larger) for rank, name in enumerate(sorted(loads))}

    return shares


def _bug(
    name: str,
    about: str,
    owner: Any,
    rule: str,
    change: Callable[[Any], Any],
    hunt: Callable[[], str | None],
) -> PlantedBug:
    return PlantedBug(f"shared/{name}", about, lambda: patched(owner, rule, change), hunt)


_SEEDS = by_seeds("shared", 25)
_LATER = by_seeds("shared", 25, first=2)

PLANTED: tuple[PlantedBug, ...] = (
    _bug("finished-forgotten", "a consumed segment is forgotten and taken for a new one",
         Holdings, "finish", _forgets_finished, _SEEDS),
    _bug("revoking-undone", "progress of a unit being revoked makes it granted again",
         Leader, "_apply", _regrants_on_progress, _SEEDS),
    _bug("finish-punished", "revoke_finished after a hand-over sends the borrower away",
         Leader, "_revoke_finished", _invalidates_after_hand_over,
         by_search("hand-over, repeats", 12)),
    _bug("ranges-dropped", "a partly acked batch is handed over from its beginning",
         Holdings, "grant", _grants_from_the_floor, _SEEDS),
    _bug("token-kept", "a unit changes hands without a new token",
         Holdings, "assign", _keeps_the_token, by_search("hand-over, repeats", 12)),
    _bug("confirmed-early", "an ack is confirmed before it is durable",
         Leader, "_take", _confirms_at_once, by_search("two join", 11)),
    _bug("granted-early", "a unit is granted before its claim is durable",
         Leader, "_settle", _grants_before_the_claim, _LATER),
    _bug("successor-early", "a successor opens while its predecessor is being consumed",
         Holdings, "learn", _opens_successors_early, by_search("successor", 9)),
    _bug("merge-early", "a merged segment opens after the first of its predecessors",
         Holdings, "learn", _opens_after_the_first_predecessor, by_seeds("shared", 25, first=6)),
    PlantedBug("shared/empty-ends-early", "an empty sealed segment ends before what came before it",
               _empty_segments_end_early, _SEEDS),
    _bug("tokens-forgotten", "a new leader starts counting tokens again",
         Holdings, "restore", _forgets_tokens, by_seeds("shared", 25, first=1)),
    _bug("transactions-ignored", "a grant does not know what was acked in transactions",
         Leader, "committed", _ignores_transactions, by_seeds("shared", 25, first=144)),
    _bug("last-writer-wins", "stored progress is replaced instead of merged",
         Progress, "merge", _last_writer_wins, _SEEDS),
    _bug("goodbye-ignored", "the progress in a good-bye is confirmed and thrown away",
         Leader, "_disconnect", _throws_goodbyes_away, by_search("unsubscribe", 9)),
    _bug("asks-once", "a borrower asks for its leader only once",
         Borrower, "find", _asks_once, by_seeds("shared", 25, first=8)),
    _bug("commit-not-retried", "a commit that was refused or not answered is not sent again",
         Leader, "_retry_commit", _does_nothing, by_seeds("shared", 25, first=6)),
    _bug("strangers-answered", "a heartbeat is answered for a borrower that the leader has dropped",
         Leader, "answers", _answers_strangers, _SEEDS),
    _bug("gathers-for-ever", "a leader that waits for more reports goes on waiting",
         Leader, "gathered", _gathers_for_ever, by_seeds("shared", 25, first=8)),
    _bug("stall-tolerated", "a member that answers pings and acks nothing keeps its units",
         Leader, "_evict_stuck", _does_nothing, by_seeds("shared", 25, first=8)),
    _bug("late-grant-taken", "a grant that arrives after its own revocation is taken for new",
         Borrower, "_grant", _forgets_what_is_closed, by_search("overtaken grant", 9)),
    _bug("shares-by-name", "larger shares go by name, so units move for nothing",
         balance, "shares_by_count", _shares_by_name, by_golden_shares),
)  # fmt: skip
