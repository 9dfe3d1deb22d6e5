"""Runtimes get time and tasks from their host, so that whoever drives its clock drives them."""

from __future__ import annotations

import re
from pathlib import Path

import headrace

PACKAGE = Path(headrace.__file__).parent
LOOKED_AT = ("groups", "api", "net", "regions", "epochs", "*.py")
"""Folders that have runtimes, as far as they are there, and the modules that stand in none."""

DIRECT = re.compile(
    r"\btime\.(monotonic|time|sleep|perf_counter)(_ns)?\b"
    r"|\.(call_later|call_at|create_task)\("
    r"|\basyncio\.(create_task|ensure_future|wait_for|timeout)\("
    r"|\basyncio\.sleep\((?!0\))"
)
"""Time and tasks that come from elsewhere; a turn of the loop (``sleep(0)``) is neither."""

ALLOWED = 7
"""May only fall."""


def direct_uses(package: Path) -> list[str]:
    files = {
        file
        for pattern in LOOKED_AT
        for found in package.glob(pattern)
        for file in ([found] if found.is_file() else found.rglob("*.py"))
    }
    return [
        f"{file.relative_to(package)}:{number} {line.strip()}"
        for file in sorted(files)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if DIRECT.search(line)
    ]


def test_time_and_tasks_come_from_the_host() -> None:
    found = direct_uses(PACKAGE)
    assert len(found) <= ALLOWED, "\n".join(found)
    assert len(found) == ALLOWED, f"fewer than allowed: set ALLOWED to {len(found)}"


def test_a_direct_use_is_found(tmp_path: Path) -> None:
    (tmp_path / "groups" / "shared").mkdir(parents=True)
    (tmp_path / "groups" / "shared" / "bad.py").write_text(
        "began = time.perf_counter()\n"
        "task = self._loop.create_task(work)\n"
        "await asyncio.sleep(PAUSE_S)\n"
        "loop.call_later(1.0, go)\n"
    )
    (tmp_path / "groups" / "good.py").write_text(
        "await asyncio.sleep(0)\nawait host.sleep(1)\nhost.spawn(work)\nself._host.after(1, go)\n"
    )
    (tmp_path / "client.py").write_text("asyncio.ensure_future(work)\n")
    assert [use.split(" ")[0] for use in direct_uses(tmp_path)] == [
        "client.py:1",
        *(f"groups/shared/bad.py:{line}" for line in (1, 2, 3, 4)),
    ]
