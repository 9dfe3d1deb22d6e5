"""What follows from what: decisions are linked with those that they come of."""

from __future__ import annotations

from headrace.groups.decisions import Decision, What, ranges
from headrace.groups.decisions.core.linking import linked


def moves(number: int, source: str, target: str, *units: str) -> Decision:
    return Decision(
        number=number, what=What.MOVES, reason="", source=source, target=target, units=ranges(units)
    )


def test_who_waits_for_a_unit_follows_from_the_move_of_that_unit() -> None:
    before = [
        Decision(number=1, what=What.CONFIGURED, reason="m5 was added"),
        moves(2, "m2", "m3", "4", "5"),
        moves(3, "m4", "m3", "9"),
        moves(4, "m3", "m4", "6"),
    ]
    waits = [
        Decision(what=What.WAITS, reason="", source="m2", target="m3", units=ranges(["5"])),
        Decision(what=What.WAITS, reason="", source="m4", target="m3", units=ranges(["9"])),
        Decision(what=What.WAITS, reason="", source="m3", target="m4", units=ranges(["6"])),
        Decision(what=What.WAITS, reason="", target="m3", units=ranges(["7"])),
    ]
    assert [each.cause for each in linked(waits, before, 5)] == [2, 3, 4, 1]
