"""Epochs without ``await``: stored and live publishers of headrace.sync."""

from __future__ import annotations

from pathlib import Path

import headrace.sync
from tests.epochs.live.support import rows


def test_a_script_publishes_and_reads_epochs(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "data") as hr:
        hr.create_stream("days", ["days.>"], epochs=headrace.Epochs())
        with hr.epoch_publisher("days", "eu") as pub:
            pub.append(1, rows("a", "b"), advance_to=2)
            assert pub.frontier == 2
        with hr.epochs("days", start="earliest", until=2) as epochs:
            assert [(epoch.time, epoch.table().num_rows) for epoch in epochs] == [(1, 2)]


def test_a_script_hears_live_epochs(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "data") as hr:
        hr.create_stream("days", ["days.>"], epochs=headrace.Epochs(stored=False))
        with hr.live_publisher("days", "eu") as pub, hr.live_epochs("days") as epochs:
            epochs.wait_for(0)
            pub.append(1, rows("a", "b"))
            pub.close()
            assert [(epoch.time, epoch.table().num_rows) for epoch in epochs] == [(1, 2)]
