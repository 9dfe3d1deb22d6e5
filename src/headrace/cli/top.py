"""``headrace top``: everything on one screen, drawn again as it changes, until q or Ctrl-C."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import App, Parameter

from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import until_ctrl_c
from headrace.cli.values import some_seconds

EVERY_S = 1.0

app = App(name="top", help="Streams and groups on one screen, live.", help_epilogue="")


@app.default
def top(
    *,
    every: Annotated[float, Parameter(converter=some_seconds)] = EVERY_S,
    options: Options = NONE,
) -> None:
    """Show streams, groups, lag and decisions on one screen, live.

    Looking never takes more than a tenth of a core: where there are very many groups, it looks
    less often than --every says.  Keys: ↑ and ↓ choose a group, Enter opens it, Esc goes back, s
    changes the order, space pauses, q ends.

    * `headrace top`
    * `headrace top --every 5s --catalog ./data`

    Parameters
    ----------
    every
        How often it looks: 0.5s, 5s.
    """
    if not 0.2 <= every <= 3600:
        raise UsageError(f"--every {every:g}s: give 0.2s to 1h")
    if options.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "headrace top needs a terminal; for one look: headrace status, for programs with --json"
        )
    from headrace.cli.top_live import run  # loads Arrow, which --help does without

    until_ctrl_c()
    with options.look(brief=False) as catalog:
        run(catalog, every)
