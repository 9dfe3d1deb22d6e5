"""Signals that raise in blocking publishes leave nothing taken; the long run is by hand."""

from __future__ import annotations

import random
import shutil

from tests.support import PATIENCE_S
from tests.torture.interrupts import Interrupts
from tests.torture.run import new_folder

INTERRUPTS = 400


def test_interrupts_leave_no_lock_and_lose_nothing() -> None:
    folder = new_folder()
    seed = random.SystemRandom().randrange(1 << 32)
    # A lock that is left is never given back; beside other tests a write may take a while.
    result = Interrupts(folder, INTERRUPTS, seed, write_s=PATIENCE_S).run()
    assert result.findings == [], f"seed {seed}"
    assert result.interrupts == INTERRUPTS
    assert result.told > INTERRUPTS  # the program's own write after each, and others
    shutil.rmtree(folder)
