"""What an instance says: effects for its runtime, and decisions with their reasons."""

from __future__ import annotations

from collections import deque

from headrace.groups.decisions.core.record import What
from headrace.groups.partitioned.core.messages import InstanceDecision, InstanceEffect

DECISIONS_MAX = 256


class InstanceOutput:
    """Collects the effects of one event, and keeps the last decisions for explain."""

    def __init__(self, member: str, instance: str) -> None:
        self.member = member
        self.instance = instance
        self.now_ms = 0
        self.decisions: deque[InstanceDecision] = deque(maxlen=DECISIONS_MAX)
        self._effects: list[InstanceEffect] = []

    def do(self, effect: InstanceEffect) -> None:
        """Ask the runtime for something."""
        self._effects.append(effect)

    def decide(
        self,
        what: What,
        reason: str,
        partition: int | None = None,
        *,
        other: str = "",
        passing: bool = False,
    ) -> None:
        """Tell of a decision."""
        decision = InstanceDecision(
            self.now_ms, what, self.member, self.instance, reason, partition, other, passing
        )
        self.decisions.append(decision)
        self.do(decision)

    def said(self, reason: str) -> bool:
        """Whether this is the last thing that was decided; it is not said twice in a row."""
        return bool(self.decisions) and self.decisions[-1].reason == reason

    def take(self) -> list[InstanceEffect]:
        """The effects since the last time."""
        effects, self._effects = self._effects, []
        return effects
