"""``python -m tests.torture.histories``: the long version, with a summary."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
import msgspec
from cyclopts import Parameter

from tests.torture.histories.round import Kind, Outcome
from tests.torture.histories.run import KINDS, run_rounds

app = cyclopts.App(name="python -m tests.torture.histories", help_format="plaintext")


def tell(outcome: Outcome, folder: Path | None) -> None:
    said = f"{outcome.kind} {outcome.seed}: {outcome.seconds:.0f} s"
    if folder is None:
        print(f"{said}, {outcome.figures.events} events, sound", flush=True)
        return
    print(f"{said}, VIOLATED, everything is kept in {folder}", flush=True)
    for finding in outcome.findings:
        print(f"    {finding.kind}: {finding.detail}", flush=True)


@app.default
def main(
    *,
    rounds: Annotated[int, Parameter(help="how many")] = 100,
    kind: Annotated[Literal["shared", "static", "both"], Parameter(help="of group")] = "both",
    seconds: Annotated[float, Parameter(help="how long a round has faults")] = 4.0,
    seed: Annotated[
        int | None, Parameter(help="of the first round; the next have the next")
    ] = None,
) -> int:
    """Kill, freeze and cancel, and judge what everybody was told; exits with 1 on a violation."""
    chosen = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    kinds: tuple[Kind, ...] = KINDS if kind == "both" else (kind,)
    totals = run_rounds(rounds, chosen, seconds, kinds, tell)
    print(msgspec.json.format(msgspec.json.encode(totals)).decode())
    return 1 if totals.violations else 0


if __name__ == "__main__":
    sys.exit(app())
