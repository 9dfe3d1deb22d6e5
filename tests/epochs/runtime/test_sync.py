"""Subscriptions to epochs without ``await``."""

from __future__ import annotations

from pathlib import Path

import headrace.sync
from headrace.catalog.streams import Epochs
from tests.epochs.runtime.writer import Writer


def test_epochs_are_read_acked_and_answered_without_await(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path) as hr:
        hr.create_stream("orders", subjects=["orders.>"], segments=2, epochs=Epochs())
        hr.create_stream("reports", subjects=["reports.>"])
        writer = Writer(hr.client.log, "orders")
        for time in range(4):
            writer.publish("eu", [(time, b"x"), (time, b"y")])
        writer.close("eu")
        with hr.epochs("orders", name="report", start="earliest") as epochs:
            first, second, third, last = epochs
            assert [first.time, second.time, third.time, last.time] == [0, 1, 2, 3]
            assert first.table().num_rows == sum(batch.num_rows for batch in first) == 2
            first.ack()
            with second.transaction() as tx:
                tx.publish("reports.day", b"1")
            assert epochs.end == "closed"
        with hr.epochs("orders", name="report") as epochs:
            (step,) = epochs.steps()
            assert (step.times, step.table().num_rows) == ((2, 3), 4)
        with hr.epochs("orders", mode="streaming", start="earliest") as epochs:
            epochs.wait_for(())
            assert sum(item.table().num_rows for item in epochs if hasattr(item, "rows")) == 8
        assert [one.name for one in hr.epoch_subscriptions()] == ["report"]
        hr.forget_epoch_subscription("report")
