"""Sessions of scripts: the same results without ``await``."""

from __future__ import annotations

from pathlib import Path

import headrace
import headrace.sync


def test_a_script_consumes_event_by_event_and_in_batches(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("orders", subjects=["orders.>"])
        hr.create_stream("bills", subjects=["bills.>"])
        hr.append("orders", [headrace.Event(subject="orders.n", value=b"%d" % n) for n in range(6)])
        with hr.session("w") as session:
            session.subscribe("$share/g/orders.>", start="earliest")
            assert (session.name, session.subscriptions) == ("w", ("$share/g/orders.>",))
            seen = []
            for delivery in session:
                seen.append(delivery.value)
                match len(seen):
                    case 1:
                        delivery.nack(0, "once more")
                    case 2:
                        assert delivery.attempt == 2
                        delivery.extend()
                        delivery.ack()
                    case 3:
                        with delivery.transaction() as tx:
                            tx.publish("bills.n", b"paid")
                    case 4:
                        delivery.reject("of no use")
                    case _:
                        delivery.ack_soon()
                if len(seen) == 7:
                    break
            session.flush()
        assert seen == [b"0", b"0", b"1", b"2", b"3", b"4", b"5"]
        assert hr.shared_groups.get("g").lag_events == 0
        assert [v for b in hr.read("bills") for v in b.column("value").to_pylist()] == [b"paid"]
        with hr.session() as session:
            session.subscribe("orders.>", start="earliest")
            rows = 0
            for batch in session.batches():
                rows += batch.data.num_rows
                batch.ack()
                if rows == 6:
                    break
            session.unsubscribe("orders.>")
            assert session.subscriptions == ()
        hr.shared_groups.delete("g")
        assert hr.shared_groups.list() == ()
