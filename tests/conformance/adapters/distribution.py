"""``distribution/1``: which member owns which partitions under ``blocks``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headrace.groups.partitioned.core.distribution import blocks
from tests.conformance.registry import Adapter

_LABEL_NAMES_MAX = 4


class DistributionCase(msgspec.Struct, frozen=True):
    members: list[str]
    max_members: Annotated[int, msgspec.Meta(ge=0)]
    assignment: dict[str, list[int]]
    note: str = ""


def label(case: DistributionCase) -> str:
    shown = ", ".join(case.members[:_LABEL_NAMES_MAX])
    if len(case.members) > _LABEL_NAMES_MAX:
        shown += f", … {len(case.members)} in all"
    return f"{case.max_members} over [{shown}]{': ' if case.note else ''}{case.note}"


def check(case: DistributionCase) -> list[str]:
    got = {member: list(owned) for member, owned in blocks(case.members, case.max_members).items()}
    return [
        f"expected {case.assignment.get(member)} for {member!r}, got {got.get(member)}"
        for member in sorted(case.assignment.keys() | got.keys())
        if case.assignment.get(member) != got.get(member)
    ]


ADAPTER = Adapter(format="distribution/1", case=DistributionCase, label=label, check=check)
