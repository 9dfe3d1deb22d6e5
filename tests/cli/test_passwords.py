"""No password of an address is shown, whatever its form and whatever goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
import headrace.sync
from tests.cli.conftest import Cli

SECRET = "hunter2"
ADDRESSES = (
    f"postgresql://ann:{SECRET}@127.0.0.1:1/app",
    f"postgresql://127.0.0.1:1/app?password={SECRET}",
    f"postgresql://127.0.0.1:1/app?user=ann&password={SECRET}&connect_timeout=2",
    f"postgresql://ann:{SECRET}@127.0.0.1:1/app?sslpassword={SECRET}",
    f"postgresql://127.0.0.1:1/app?nonsense=1&PASSWORD={SECRET}",
    f"postgresql://ann:{SECRET}@127.0.0.1:bad/app?password={SECRET}",
)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"], ["stream", "ls"]])
def test_commands_show_no_password(cli: Cli, address: str, words: list[str]) -> None:
    refused = cli("--catalog", address, *words)
    assert refused.status != 0
    assert SECRET not in refused.out + refused.err
    assert "postgresql://" in refused.out + refused.err


@pytest.mark.parametrize("address", ADDRESSES)
def test_errors_and_warnings_show_no_password(address: str) -> None:
    with pytest.raises(headrace.HeadraceError) as caught, headrace.sync.open(address) as hr:
        hr.streams()
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or error.__context__
    assert SECRET not in repr(headrace.open(address))


def test_an_address_of_another_kind_is_named_without_its_password(tmp_path: Path) -> None:
    for url in (f"mysql://ann:{SECRET}@db/app", f"mysql://db/app?password={SECRET}"):
        with pytest.raises(headrace.HeadraceError) as caught, headrace.sync.open(url):
            pass
        assert SECRET not in str(caught.value)
    for store in (f"ftp://ann:{SECRET}@host/x", f"ftp://host/x?password={SECRET}"):
        with (
            pytest.raises(headrace.HeadraceError) as caught,
            headrace.sync.open(tmp_path / "d", store=store),
        ):
            pass
        assert SECRET not in str(caught.value)
