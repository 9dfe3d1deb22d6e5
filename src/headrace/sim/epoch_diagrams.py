"""State diagrams of epochs and of their subscriptions, drawn from the tables of the code.

``python -m headrace.sim.epoch_diagrams`` writes them into ``docs/``; a test fails when they are
older than the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from headrace.epochs.core.lifecycle import (
    EPOCH_TRANSITIONS,
    SUBSCRIPTION_TRANSITIONS,
    EpochState,
    Standing,
)
from headrace.sim.diagrams import write_page

FILE_NAME = "epochs-states.md"

S = TypeVar("S", bound=StrEnum)

_INTRODUCTION = """\
# Epochs: states

Drawn by `python -m headrace.sim.epoch_diagrams` from the transition tables in
`headrace.epochs.core.lifecycle`. Do not edit.
"""

_ABOUT_EPOCHS = """\
An epoch as the publisher of one partition sees it. A subscriber is given only epochs that were
latent in every partition when its snapshots were taken, and it can tell when one is completed.
"""

_ABOUT_SUBSCRIPTIONS = """\
A subscription to all partitions of a stream. Nothing is judged while snapshots are awaited. A
stream that is closed is complete; one that is aborted is complete only up to the frontier.
"""


def mermaid(table: Mapping[tuple[S, str], S], start: S) -> str:
    """One diagram; states that nothing leads out of are final and keep their names."""
    causes: dict[tuple[S, S], list[str]] = {}
    for (source, cause), target in table.items():
        if source != target:
            causes.setdefault((source, target), []).append(str(cause))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    lines.extend(
        f"    {source} --> {target}: {', '.join(names)}"
        for (source, target), names in causes.items()
    )
    sources = {source for source, _ in causes}
    final = dict.fromkeys(target for _, target in causes if target not in sources)
    lines.extend(f"    {state} --> [*]" for state in final)
    return "\n".join([*lines, "```", ""])


def render() -> str:
    """The whole page."""
    sections = (
        _INTRODUCTION,
        "## Epoch\n",
        _ABOUT_EPOCHS,
        mermaid(EPOCH_TRANSITIONS, EpochState.LATENT),
        "## Subscription\n",
        _ABOUT_SUBSCRIPTIONS,
        mermaid(SUBSCRIPTION_TRANSITIONS, Standing.AWAITING),
    )
    return "\n".join(sections)


def main() -> None:
    """Write the page."""
    write_page("Draw the state diagrams of epochs.", FILE_NAME, render())


if __name__ == "__main__":
    main()
