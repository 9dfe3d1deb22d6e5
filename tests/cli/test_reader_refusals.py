"""What ``headrace reader`` refuses: one line, status 2, and the group is as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace.sync
from headrace.cli import run
from headrace.errors import CheckpointTimeoutError
from headrace.groups.letter_names import stream_of
from headrace.groups.readers.names import ReaderGroupName
from tests.support import wait_until


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A stream whose first segment was split and trimmed, one to be read by groups, and a group."""
    with headrace.sync.open(tmp_path / "data") as hr:
        hr.create_stream("orders", ["orders.>"])
        hr.create_stream("clicks", ["clicks.>"])
        for stream in ("orders", "clicks"):
            for n in range(20):
                hr.publish(f"{stream}.{n}", b"x", key=str(n))
        hr.split("orders", 0)
        for n in range(20):
            hr.publish(f"orders.{n}", b"x", key=str(n))
        hr.reader_groups.create("report", streams=["orders", "clicks"])
    return tmp_path / "data"


@pytest.fixture
def typed(catalog: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Type a command; returns (status, what it printed, what it complained)."""

    def typed(*words: str) -> tuple[int, str, str]:
        status = run(["--catalog", str(catalog), "reader", *words])
        said = capsys.readouterr()
        return status, said.out, said.err

    return typed


def state(typed: Any) -> tuple[object, object]:
    """What there is to know of the group, but for the time."""
    info = json.loads(typed("info", "report", "--json")[1])
    if info["readers"]:  # who records by itself how far it is
        del info["revision"]
        info["readers"] = [(each["reader"], each["segments"]) for each in info["readers"]]
    lag = json.loads(typed("lag", "report", "--json")[1])
    return info, lag["lag_events"]


def refused(typed: Any, *words: str, said: str) -> None:
    before = state(typed)
    status, out, err = typed(*words)
    assert (status, out) == (2, ""), err
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert state(typed) == before


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        ({"orders/9": 0, "orders/0": 0, "clicks/0": 0}, "no segment orders/9"),
        ({"orders/0": 21, "clicks/0": 0}, "orders/0 has no offset 21; its head is 20"),
        ({"orders/0": 0, "orders/1": 0, "clicks/0": 0}, "orders/1 follows another"),
        ({"orders/1": 0, "clicks/0": 0}, "says nothing of the keys of orders/2"),
        ({"orders/0": 0}, "says nothing of stream 'clicks'"),
        ({"orders/0": -2, "clicks/0": 0}, "is not a position"),
        ({"orders/0": "5", "clicks/0": 0}, "is not a position"),
        ({"orders": 0}, "not"),
    ],
)
def test_a_cut_that_makes_no_sense(
    catalog: Path, typed: Any, cut: dict[str, int], said: str
) -> None:
    before = state(typed)
    with headrace.sync.open(catalog) as hr:
        group = hr.reader_groups.get("report")
        with pytest.raises(headrace.HeadraceError, match=said):
            group.reset(cut)
        with pytest.raises(headrace.HeadraceError, match=said.replace("the place", "")):
            hr.reader_groups.create("g", streams=["orders", "clicks"], start=cut)
        assert [each.name for each in hr.reader_groups.list()] == ["report"]
    assert state(typed) == before


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"orders/0": 5, "clicks/0": 4}, "begins there at"),
        ({"orders/1": 5, "clicks/0": 10}, "says nothing of the keys of orders/2"),
        ({"orders/0": 10, "orders/1": 5, "clicks/0": 10}, "follows another"),
        ({"orders/0": 10, "clicks/0": 99}, "clicks/0 has no offset 99"),
    ],
)
def test_an_end_that_would_never_be_reached(catalog: Path, end: dict[str, int], said: str) -> None:
    with headrace.sync.open(catalog) as hr:
        with pytest.raises(headrace.HeadraceError, match=said):
            hr.reader_groups.create(
                "g", streams=["orders", "clicks"], start={"orders/0": 6, "clicks/0": 6}, end=end
            )
        assert [each.name for each in hr.reader_groups.list()] == ["report"]


def test_streams_that_belong_to_groups(catalog: Path, typed: Any) -> None:
    with headrace.sync.open(catalog) as hr:
        with hr.reader_groups.get("report").reader("r1") as reader:
            delivery = reader.next(timeout_s=30)
            assert delivery is not None
            delivery.reject("broken")
        name = stream_of(ReaderGroupName("report").key)
    refused(typed, "create", "g", "--streams", name, said="belongs to a group")
    refused(typed, "streams", "add", "report", name, said="belongs to a group")


def test_a_reset_with_readers_online_wants_a_yes(catalog: Path, typed: Any) -> None:
    with headrace.sync.open(catalog) as hr, hr.reader_groups.get("report").reader("r1"):
        status, _, err = typed("reset", "report", "--start", "earliest")
        assert (status, "--yes" in err, "r1" in err) == (2, True, True)
        assert [
            each["reader"] for each in json.loads(typed("info", "report", "--json")[1])["readers"]
        ] == ["r1"]


def test_checkpoints_that_cannot_be_gone_back_to(catalog: Path, typed: Any) -> None:
    refused(typed, "reset", "report", "--checkpoint", "never", said="never")
    refused(typed, "checkpoint", "report", "x" * 129, said="128")
    with headrace.sync.open(catalog) as hr:
        group = hr.reader_groups.get("report")
        with group.reader("r1", lease_ttl_ms=60_000) as reader:
            wait_until(lambda: len(reader.status.segments) == 2, "both segments")
            held = reader.next(timeout_s=30)
            assert held is not None
            with pytest.raises(CheckpointTimeoutError, match="r1"):
                group.checkpoint("stuck", timeout_s=0.5)
            refused(typed, "reset", "report", "--checkpoint", "stuck", "--yes", said="stuck")
            group.cancel_checkpoint("stuck")
        group.checkpoint("early")
        hr.trim("clicks", {0: 10})
    refused(
        typed, "reset", "report", "--checkpoint", "early", "--yes", said="clicks/0 begins at 10"
    )


def test_a_damaged_text_of_a_checkpoint(tmp_path: Path, typed: Any) -> None:
    text, kept = typed("checkpoint", "report", "nightly")[1], tmp_path / "kept"
    assert text.startswith("headrace-checkpoint:")
    for damaged in (text[:40], text[:40] + "!" + text[41:], text.replace("point", "pont"), ""):
        kept.write_text(damaged)
        refused(typed, "reset", "report", "--cut", str(kept), "--yes", said="not the text of a")


def test_a_release_wants_a_group_that_is_kept_by_hand(catalog: Path, typed: Any) -> None:
    with headrace.sync.open(catalog) as hr:
        group = hr.reader_groups.get("report")
        cut = group.cut()
        before = state(typed)
        with pytest.raises(headrace.HeadraceError, match="manual"):
            group.release(cut)
    assert state(typed) == before


def test_offline_of_nobody_and_of_what_it_does_not_own(catalog: Path, typed: Any) -> None:
    before = state(typed)
    status, out, _ = typed("offline", "report", "r9")
    assert (status, "nothing changed" in out) == (0, True)
    assert state(typed) == before
    with headrace.sync.open(catalog) as hr, hr.reader_groups.get("report").reader("r1") as reader:
        wait_until(lambda: len(reader.status.segments) == 2, "both segments")
        refused(typed, "offline", "report", "r1", "--position", "orders/7=3", said="does not own")
        refused(typed, "offline", "report", "r1", "--position", "orders/x=3", said="orders/x")


def test_a_lease_below_two_heartbeats(catalog: Path, typed: Any) -> None:
    before = state(typed)
    with headrace.sync.open(catalog) as hr:
        group = hr.reader_groups.get("report")
        with pytest.raises(headrace.HeadraceError, match="half"):
            group.reader("r1", lease_ttl_ms=1000, heartbeat_ms=501)
    assert state(typed) == before
