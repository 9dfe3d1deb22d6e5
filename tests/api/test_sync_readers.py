"""Reader groups without ``await``, and events by their positions."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
import headrace.sync
from headrace.errors import InvalidPositionError


def test_a_script_reads_takes_a_checkpoint_and_goes_back(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "data", housekeeping=False) as hr:
        hr.create_stream("orders", ["orders.>"], segments=2)
        for n in range(6):
            hr.publish(f"orders.{n}", str(n).encode(), key=str(n), headers=[("n", b"1")])
        group = hr.reader_groups.create("report", streams=["orders"])
        with group.reader("r1") as reader:
            first = reader.next(timeout_s=30)
            assert first is not None
            event = hr.fetch(first.position)
            assert (event.subject, event.value, event.key) == (
                first.subject,
                first.value,
                first.key,
            )
            first.ack()
            checkpoint = group.checkpoint("c1")
            rest = []
            for delivery in reader:
                delivery.ack()
                rest.append(delivery.value)
                if len(rest) == 5:
                    break
            assert reader.next(timeout_s=0.2) is None
            assert group.lag().events == 0
            group.reset(headrace.Checkpoint.parse(str(checkpoint)))
            assert group.lag().events == 5
            again = reader.next(timeout_s=30)
            assert again is not None
            assert again.value in rest
            assert reader.status.online
        assert [each.name for each in hr.reader_groups.list()] == ["report"]
        assert hr.reader_groups.get("report").info().last_checkpoint == "c1"
        with pytest.raises(InvalidPositionError):
            hr.fetch(headrace.Position("orders", 0, 10_000))
        hr.reader_groups.delete("report")
