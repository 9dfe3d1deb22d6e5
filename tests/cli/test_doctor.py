"""``headrace doctor``: what is wrong, how to mend it, and a status for scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import doctor, run
from headrace.errors import JavaTooOldError, StoreUnavailableError
from headrace.log.open import open_log
from headrace.spark import java
from headrace.store import Store


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    told = json.loads(capsys.readouterr().out)
    return {check["name"]: check for check in told["checks"]}


def test_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_log(tmp_path / "c").catalog.close()
    assert run(["doctor", "--catalog", str(tmp_path / "c"), "--json"]) == 0
    checks = found(capsys)
    assert set(checks) == {"Python", "PySpark", "pandas", "Java", "catalog", "store"}
    assert all(check["state"] == "ok" for check in checks.values()), checks
    assert not [p for p in (tmp_path / "c" / "store").rglob("*") if p.is_file()]
    assert run(["doctor", "--catalog", str(tmp_path / "c")]) == 0
    assert "writes and reads" in capsys.readouterr().out


def test_a_catalog_that_is_not_there_fails_if_it_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["doctor", "--catalog", str(tmp_path / "none"), "--json"]) == 1
    assert found(capsys)["catalog"]["mend"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_CATALOG", raising=False)
    assert run(["doctor", "--json"]) == 0
    assert found(capsys)["catalog"]["state"] == "warning"


def test_a_folder_that_is_no_catalog_and_a_store_that_does_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("Dear Ann")
    assert run(["doctor", "--catalog", str(tmp_path / "other"), "--json"]) == 1
    assert found(capsys)["catalog"]["state"] == "failed"

    def refuse(*_: object) -> None:
        raise StoreUnavailableError("store: no")

    open_log(tmp_path / "c").catalog.close()
    monkeypatch.setattr(Store, "put", refuse)
    assert run(["doctor", "--catalog", str(tmp_path / "c"), "--json"]) == 1
    assert found(capsys)["store"]["state"] == "failed"


def test_an_old_java_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def old() -> java.Java:
        raise JavaTooOldError(f"Spark needs Java 17, and /x has Java 8: {java.MEND}")

    monkeypatch.setattr(java, "find_java", old)
    check = doctor.check_java(needed=True)
    assert (check.state, check.mend) == ("failed", java.MEND)
    assert doctor.check_java(needed=False).state == "warning"


def test_versions_that_do_not_go_together() -> None:
    assert doctor.check_python((3, 10, 4)).state == "failed"
    assert doctor.check_pyspark(None).state == "warning"
    assert doctor.check_pyspark("3.5.1").state == "failed"
    assert doctor.check_pyspark("4.4.0").state == "failed"
    assert doctor.check_pandas("3.0.1").state == "warning"
    assert doctor.check_pandas(None).state == "failed"
