"""Dead letters are decisions, too."""

from __future__ import annotations

from pathlib import Path

import headrace.sync
from headrace.groups.decisions import What, units_text


def test_a_shared_group_tells_of_its_dead_letters_until_it_is_deleted(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path, housekeeping=False) as hr:
        hr.create_stream("orders", ["orders.>"])
        hr.shared_groups.declare("g", "orders.>", start="earliest")
        hr.publish("orders.1", b"bad")
        with hr.session("w") as session:
            session.subscribe("$share/g/orders.>")
            next(iter(session)).reject("cannot be read")
        [told] = [d for d in hr.shared_groups.explain("g").decisions if d.what is What.DEAD_LETTER]
        assert (told.member, units_text(told.units)) == ("w", "orders/0")
        assert told.reason == "orders.1 at offset 0: rejected after 1 delivery: cannot be read"
        hr.shared_groups.delete("g")
        hr.shared_groups.declare("g", "orders.>", start="earliest")
        assert [d.what for d in hr.shared_groups.explain("g").decisions] == [What.CONFIGURED]
