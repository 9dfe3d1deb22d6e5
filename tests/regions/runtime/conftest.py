"""What tests of regions share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the region us has its catalog; eu has it on SQLite."""
    if request.param == "sqlite":
        return str(tmp_path / "us")
    monkeypatch.setenv("HEADRACE_POSTGRES_FSYNC", "off")
    url: str = request.getfixturevalue("postgres_url")
    return url.replace("postgres:@", "postgres@")
