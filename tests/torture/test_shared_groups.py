"""The short version of the torture of shared groups, and proof that its accounting can fail."""

from __future__ import annotations

from pathlib import Path

from tests.torture.shared_groups import MEMBERS, Ordeal


def test_members_and_leaders_die_freeze_and_are_cut_off(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    report = Ordeal(str(tmp_path / "catalog"), out, seed=7).run(5)
    assert report.wrong == ()
    assert sum(report.faults.values()) == 5
    assert report.events > 0


def test_what_is_missing_repeated_or_out_of_order_is_found(tmp_path: Path) -> None:
    for name in MEMBERS:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "a").write_bytes(b"+ 1 0-5\n! 2 0-5\n+ 3 0-1\n? 9 lost\n")
    (tmp_path / "b").write_bytes(b"+ 4 0-5\n! 5 0-5\n")
    ordeal = Ordeal("", tmp_path, seed=1)
    ordeal._published = [b"0-1", b"0-5", b"0-9"]
    report = ordeal._account(token=1)
    assert report.repeated == 1
    assert [text for text in report.wrong if "after" in text]
    assert [text for text in report.wrong if "acked by a and by b" in text]
    assert [text for text in report.wrong if "1 events were never delivered" in text]
    assert [text for text in report.wrong if "out of order" in text]
    assert "a: lost" in report.wrong
