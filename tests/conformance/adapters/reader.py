"""``reader/1``: the state of a reader group after every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.errors import ReaderGroupError, ReaderRevisionError
from headrace.groups.readers import (
    AckCheckpoint,
    AcquireShare,
    AddReader,
    CheckpointKind,
    ClaimSegment,
    CompleteSegments,
    Completion,
    CreateCheckpoint,
    GroupConfig,
    ReaderGroupState,
    ReleaseSegments,
    RemoveReader,
    Reset,
    ResetToCheckpoint,
    SegmentId,
    Successor,
    Update,
    apply,
    decide,
)
from headrace.groups.readers.core.balance import wants_release
from headrace.groups.readers.core.records import encode_state
from headrace.groups.readers.core.segments import positions
from tests.conformance.registry import Adapter

Offsets = dict[str, int]


class Expect(msgspec.Struct, frozen=True):
    result: Any = UNSET
    assigned: dict[str, Offsets] | UnsetType = UNSET
    unassigned: Offsets | UnsetType = UNSET
    future: dict[str, list[str]] | UnsetType = UNSET
    pending: dict[str, list[str]] | UnsetType = UNSET
    completed: dict[str, Offsets] | UnsetType = UNSET
    last_checkpoint: Offsets | UnsetType | None = UNSET
    counts: dict[str, int] | UnsetType = UNSET
    unassigned_count: int | UnsetType = UNSET
    end_of_data: bool | UnsetType = UNSET
    generator_calls: int | dict[str, int] | UnsetType = UNSET


class Step(msgspec.Struct, frozen=True):
    op: Literal[
        "join",
        "claim",
        "acquire",
        "wants_release",
        "release",
        "end_of_segment",
        "checkpoint_start",
        "checkpoint_ack",
        "offline",
        "reset",
        "race",
    ]
    expect: Expect = Expect()
    reader: str = ""
    readers: list[str] = []
    order: list[str] = []
    segment: str = ""
    name: str = ""
    checkpoint: str = ""
    silent: bool = False
    position: int | Offsets | None = None
    positions: Offsets = {}
    cut: Offsets = {}
    end_cut: Offsets | None = None


class ReaderCase(msgspec.Struct, frozen=True):
    id: str
    title: str
    start: Offsets
    steps: list[Step]
    predecessors: dict[str, list[str]] = {}
    end_cut: Offsets = {}


class Run:
    """A case under way: the state, and how often a decision was taken in a race."""

    def __init__(self, case: ReaderCase) -> None:
        self.case = case
        self.state = ReaderGroupState(GroupConfig(), _cut(case.start), end_cut=_cut(case.end_cut))
        self.decisions: dict[str, int] = {}

    def do(self, step: Step) -> Any:
        """Do a step; the result as the format writes it."""
        try:
            return self._do(step)
        except ReaderGroupError as refused:
            return f"rejected:{refused.reason}"

    def _do(self, step: Step) -> Any:
        match step.op:
            case "wants_release":
                return wants_release(self.state, step.reader)
            case "race":
                return self._race(step)
            case "acquire":
                return len(apply(self.state, self._update(step)).claimed)
            case _:
                apply(self.state, self._update(step))
                return "ok"

    def _update(self, step: Step) -> Update:
        reader, token = step.reader, self._token(step.reader)
        match step.op:
            case "join":
                return AddReader(reader)
            case "acquire":
                return AcquireShare(reader, token)
            case "claim":
                return ClaimSegment(reader, token, SegmentId.parse(step.segment))
            case "release":
                segment = SegmentId.parse(step.segment)
                at = {segment: step.position} if isinstance(step.position, int) else {}
                return ReleaseSegments(reader, token, (segment,), positions(at))
            case "end_of_segment":
                segment = SegmentId.parse(step.segment)
                done = Completion(segment, self._successors(step.segment))
                return CompleteSegments(reader, token, (done,))
            case "checkpoint_start":
                kind = CheckpointKind.SILENT if step.silent else CheckpointKind.NORMAL
                return CreateCheckpoint(step.name, kind)
            case "checkpoint_ack":
                return AckCheckpoint(reader, token, step.name, positions(_cut(step.positions)))
            case "offline":
                left = step.position if isinstance(step.position, dict) else {}
                return RemoveReader(reader, positions(_cut(left)))
            case "reset" if step.checkpoint or step.name:
                return ResetToCheckpoint(step.checkpoint or step.name)
            case "reset":
                end = None if step.end_cut is None else positions(_cut(step.end_cut))
                return Reset(positions(_cut(step.cut)), end_cut=end)
        raise AssertionError(f"{step.op} is not an update")

    def _token(self, reader: str) -> int:
        """Steps name readers without a token: whoever has the name now is meant."""
        member = self.state.members.get(reader)
        return 0 if member is None else member.token

    def _successors(self, segment: str) -> tuple[Successor, ...]:
        return tuple(
            Successor(SegmentId.parse(name), tuple(map(SegmentId.parse, predecessors)))
            for name, predecessors in self.case.predecessors.items()
            if segment in predecessors
        )

    def _race(self, step: Step) -> dict[str, int]:
        """All decide on one revision; whoever comes late to the log decides again."""
        readers = step.readers or step.order
        updates = {reader: AcquireShare(reader, self._token(reader)) for reader in readers}
        self.decisions = dict.fromkeys(readers, 1)
        decided = {r: (self.state.revision, decide(self.state, updates[r])) for r in readers}
        taken = dict.fromkeys(readers, 0)
        for reader in step.order or readers:
            revision, changes = decided[reader]
            while changes:
                try:
                    outcome = apply(self.state, updates[reader], if_revision=revision)
                except ReaderRevisionError:
                    self.decisions[reader] += 1
                    revision = self.state.revision
                    changes = decide(self.state, updates[reader])
                else:
                    taken[reader] = len(outcome.claimed)
                    break
        return taken


def _cut(offsets: Offsets) -> dict[SegmentId, int]:
    return {SegmentId.parse(segment): offset for segment, offset in offsets.items()}


def _names(offsets: Mapping[SegmentId, int]) -> Offsets:
    return {str(segment): offset for segment, offset in offsets.items()}


def _same_result(step: Step, wanted: Any, got: Any) -> bool:
    if step.op == "race" and isinstance(wanted, list):
        return wanted == [got[reader] for reader in step.order or step.readers]
    if step.op == "race" and not isinstance(wanted, dict):
        return bool(wanted == "ok" or wanted == sum(got.values()))
    return type(wanted) is type(got) and bool(wanted == got)


def seen(run: Run, expect: Expect) -> dict[str, tuple[Any, Any]]:
    """What is expected and what there is, for each thing that the step names."""
    state = run.state
    checkpoints = state.checkpoints
    owned = {
        reader: {str(segment): held.offset for segment, held in member.owned.items()}
        for reader, member in state.members.items()
    }
    last = checkpoints.last
    got: dict[str, Any] = {
        "assigned": owned,
        "unassigned": _names(state.unassigned),
        "future": {str(s): sorted(map(str, p)) for s, p in state.future.items()},
        "pending": {name: sorted(readers) for name, readers in state.blockers().items()},
        "completed": {
            c.name: _names(c.positions)
            for c in checkpoints.all()
            if not c.pending and expect.completed is not UNSET and c.name in expect.completed
        },
        "last_checkpoint": None if last is None else _names(last.positions),
        "counts": {reader: len(segments) for reader, segments in owned.items()},
        "unassigned_count": len(state.unassigned),
        "end_of_data": state.end_of_data,
        "generator_calls": run.decisions
        if isinstance(expect.generator_calls, dict)
        else sum(run.decisions.values()),
    }
    pairs = {}
    for field, value in got.items():
        wanted = getattr(expect, field)
        if field in ("future", "pending") and wanted is not UNSET:
            wanted = {name: sorted(listed) for name, listed in wanted.items()}
        if wanted is not UNSET:
            pairs[field] = (wanted, value)
    return pairs


def check(case: ReaderCase) -> list[str]:
    run = Run(case)
    faults = []
    for number, step in enumerate(case.steps, 1):
        where = f"step {number} ({step.op} {step.reader or step.name}".rstrip() + ")"
        before = encode_state(run.state)
        result = run.do(step)
        wanted = step.expect.result
        if wanted is not UNSET and not _same_result(step, wanted, result):
            faults.append(f"{where}: expected result {wanted!r}, got {result!r}")
        if str(result).startswith("rejected:") and encode_state(run.state) != before:
            faults.append(f"{where}: it was rejected and yet changed the state")
        faults += [
            f"{where}: expected {field} {wanted}, got {got}"
            for field, (wanted, got) in seen(run, step.expect).items()
            if wanted != got
        ]
    return faults


def label(case: ReaderCase) -> str:
    return f"{case.id} {case.title}"


ADAPTER = Adapter(format="reader/1", case=ReaderCase, label=label, check=check)
