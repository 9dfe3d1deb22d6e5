"""Another user of the machine cannot read a catalog, join its groups, or have files removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def run(program: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.api.strangers", program, *arguments],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="public-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_another_user_can_neither_read_a_catalog_nor_join_a_group(public: Path) -> None:
    seen = run("looking", str(public / "data"))
    assert len(seen["files"]) > 5  # the database, its logs, the store and a file in it
    assert any(path.endswith(".parquet") for path in seen["files"])
    assert seen["opened"]["read"] == []
    for what in ("listed", "wrote"):
        assert seen["opened"][what] == "PermissionError"
    for what in ("query", "log"):
        assert seen["opened"][what] != "done"
    assert seen["joined"] == ["InvalidStatus"] * 3
    assert seen["known"] == ["done"]  # it is the secret that decides


@pytest.mark.parametrize("how", ["link", "folder"])
def test_another_user_cannot_have_files_removed(public: Path, how: str) -> None:
    victim = public / "victim"
    victim.mkdir()
    (victim / "important").write_text("x")
    # So long that the sockets of the catalog are in the temporary folder.
    url = public / ("a-long-name-of-a-project-folder-on-a-server-" * 2) / "data"
    seen = run("planting", str(url), str(victim), how)
    assert not seen["planted"].startswith("PermissionError")
    assert seen["left"] == [str(victim / "important")]
    assert seen["rows"] == 2
    assert seen["foreign"] == []  # no socket is in a folder of somebody else
