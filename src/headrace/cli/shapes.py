"""The JSON of decisions, findings and the status: one vocabulary with that of groups.

``docs/json.md`` is made of these types and of those of :mod:`headrace.groups.shapes`.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from headrace.groups.decisions import Decision, UnitRange
from headrace.groups.findings import moment
from headrace.groups.shapes import Finding, GroupExplanation, GroupView


class DecisionShape(
    msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}
):
    """One decision about a group."""

    number: int
    """Counts up within the group."""
    decided_at: datetime
    group: str
    what: str
    """``joined``, ``lost``, ``moved``, ``sought`` …"""
    units: tuple[UnitRange, ...]
    source: str
    """Who had it."""
    target: str
    """Who has it now."""
    instance: str
    token: int
    reason: str
    cause: int
    """The number of the decision that this follows from; 0 if it is not known."""
    took_ms: int | None


class ExplanationShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a group is doing and why."""

    group: GroupView
    findings: tuple[Finding, ...]
    decisions: tuple[DecisionShape, ...]
    """The latest, oldest first."""


class ReaderExplanationShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader group is doing and why."""

    group: str
    lines: tuple[str, ...]
    """In words: who reads what, what waits for whom."""
    decisions: tuple[DecisionShape, ...]
    """The latest, oldest first."""


def decided(one: Decision) -> DecisionShape:
    """A decision for programs."""
    return DecisionShape(
        number=one.number,
        decided_at=moment(one.at_us),
        group=one.group,
        what=one.what.value,
        units=one.units,
        source=one.source,
        target=one.target,
        instance=one.instance,
        token=one.token,
        reason=one.reason,
        cause=one.cause,
        took_ms=one.took_ms,
    )


def explained(found: GroupExplanation) -> ExplanationShape:
    """An explanation for programs."""
    return ExplanationShape(
        group=found.group,
        findings=found.group.findings,
        decisions=tuple(decided(one) for one in found.decisions),
    )
