"""The programs in ``examples`` do what they say, also when they are started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headrace.sync
from tests.support import ROOT

EXAMPLES = ROOT / "examples"


def command(name: str, *words: str) -> list[str]:
    return [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *words]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("exactly_once", ["1000 invoices, 1000 of them different"]),
        ("daily_report", [f"reports.{day} 10 sales, {1000 * day + 45} in all" for day in range(3)]),
    ],
)
def test_a_program_ends_the_same_when_it_is_started_again(
    name: str, says: list[str], tmp_path: Path
) -> None:
    for _ in range(2):
        done = subprocess.run(
            command(name, str(tmp_path / "data")), capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == says


def test_workers_share_the_events_and_end_when_they_are_told(tmp_path: Path) -> None:
    place = str(tmp_path / "data")
    workers = [
        subprocess.Popen(
            command("worker", place, name),
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("worker-1", "worker-2")
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline().endswith(" works\n")
        with headrace.sync.open(place) as hr:
            for number in range(40):
                hr.publish(f"orders.{number}", b"12 apples", key=str(number))
            while hr.groups.lag("$share/billing/orders.>").events:
                hr.groups.explain("$share/billing/orders.>")
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        said = [worker.communicate(timeout=60)[0].splitlines() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0]
    assert [lines.pop() for lines in said] == ["worker-1 has ended", "worker-2 has ended"]
    assert sorted(said[0] + said[1]) == sorted(f"orders.{n} 12 apples" for n in range(40))


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "daily_report",
        "exactly_once",
        "worker",
    }
