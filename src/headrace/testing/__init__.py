"""For tests of programs that use Headrace: a clock that stands still until it is moved::

async def test_takeover() -> None:
    async with headrace.open(folder) as hr:
        ...
        await driven_clock().advance(5)     # five seconds pass, and nobody waits for them

headrace.testing.run(test_takeover())
"""

from headrace.errors import ClockStoodStillError
from headrace.testing.clock import DrivenClock, DrivenLoop, driven_clock, run

__all__ = ["ClockStoodStillError", "DrivenClock", "DrivenLoop", "driven_clock", "run"]
