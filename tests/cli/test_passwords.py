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
    f"postgresql://127.0.0.1:1/app?pass%77ord={SECRET}",
    f"postgresql://ann:x/{SECRET}@127.0.0.1:1/app",
    f"postgresql://ann:x@{SECRET}@127.0.0.1:1/app",
    f"postgresql://ann:{SECRET}#x@127.0.0.1:1/app",
    f"postgresql://ann:a b{SECRET}@127.0.0.1:1/app",
    f"postgresql://127.0.0.1:1/app?password=a {SECRET}",
    f"postgresql://127.0.0.1:1/app?password='a&{SECRET}'",
    f"postgresql:/ann:{SECRET}@127.0.0.1/app",
    f"host=127.0.0.1 port=1 password='a {SECRET}'",
)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"], ["stream", "ls"]])
def test_commands_show_no_password(cli: Cli, address: str, words: list[str]) -> None:
    refused = cli("--catalog", address, *words)
    assert refused.status != 0
    assert SECRET not in refused.out + refused.err
    said = refused.out + refused.err
    assert "postgresql://" in said or "there is none at host=127.0.0.1" in said
    assert list(Path().iterdir()) == []  # nor is a folder called like it


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


def test_a_linked_address_that_is_no_pair_is_not_shown(cli: Cli) -> None:
    for address in ADDRESSES[:-1]:
        refused = cli("region", "link", "s", address)
        assert refused.status != 0
        assert SECRET not in refused.out + refused.err


@pytest.mark.parametrize(
    "store",
    [
        f"s3://key:{SECRET}@bucket/prefix",
        f"s3://bucket/prefix?aws_secret_access_key={SECRET}",
        f"az://files?sas%5Ftoken={SECRET}",
    ],
)
def test_a_secret_in_the_address_of_a_store_is_refused_and_not_recorded(
    tmp_path: Path, store: str
) -> None:
    with (
        pytest.raises(headrace.HeadraceError, match="store_options") as caught,
        headrace.sync.open(tmp_path / "d", store=store),
    ):
        pass
    assert SECRET not in str(caught.value)
    with headrace.sync.open(tmp_path / "d") as hr:
        assert hr.client.log.store is not None
        assert "://" not in hr.client.log.store.url
