"""A temporary folder for each test run, in which nothing of ours may be left at its end.

Tests and the programs they start find it by ``TMPDIR``, so what other programs on the machine have
in the system's own folder does not count.  Its path is short: sockets live below it.

A program that a test killed could not clear up; the next one does that for it.  So the check first
removes what that next program would remove, and no more.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from headrace.catalog import scratch, wake

RUN = "hr-tests-"
PREFIX = "headrace-"
PATIENCE_S = 20.0
"""How long programs that were told to end may take."""


class RunFolder:
    """The temporary folder of one test run."""

    def __init__(self) -> None:
        before = tempfile.gettempdir()
        place = Path(before if len(before) < 20 else "/tmp")
        # What a test leaves in its own ``tmp_path`` stays where people look for it.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", before)
        scratch.sweep(RUN, place)  # what a killed run left; its servers end without their files
        self._scratch = scratch.Scratch(RUN, place)
        self.path = self._scratch.path
        self.path.chmod(0o1777)  # some tests act as other users
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.path)

    def close(self, *, failed: bool) -> list[str]:
        """End the run; returns what of ours is left.  If a test failed, all files stay, until the
        next run."""
        deadline = time.monotonic() + PATIENCE_S
        while (left := left_in(self.path)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not failed or not any(self.path.iterdir()):
            self._scratch.close()
        else:
            self._scratch.close.detach()  # until the next run
        return left


def left_in(place: Path) -> list[str]:
    """The folders of ours in a temporary folder, after the sweep of a program that starts."""
    scratch.sweep(wake.SCRATCH, place)
    return sorted(each.name for each in place.iterdir() if each.name.startswith(PREFIX))
