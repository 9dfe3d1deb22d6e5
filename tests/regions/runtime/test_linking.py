"""Links that are refused leave everything as it was, and say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import LinkError, NotWrittenHereError
from headrace.log.events import Event
from headrace.regions.linking import link
from headrace.regions.records import links
from tests.regions.runtime.world import ORDERS, Place


@pytest.fixture
def eu(tmp_path: Path) -> Iterator[Place]:
    place = Place("eu", str(tmp_path / "eu"))
    place.log.create_stream("orders", ORDERS, 1)
    yield place
    place.close()


@pytest.fixture
def us(tmp_path: Path) -> Iterator[Place]:
    place = Place("us", str(tmp_path / "us"))
    yield place
    place.close()


def test_two_catalogs_cannot_be_the_same_region_of_a_stream(
    eu: Place, us: Place, tmp_path: Path
) -> None:
    link(eu.log, "orders", "us", here=eu.url, catalog=us.url)
    before = eu.log.catalog.read(links)
    other = Place("us", str(tmp_path / "other"))
    with pytest.raises(LinkError, match="give the other catalog a name of its own"):
        link(eu.log, "orders", "us", here=eu.url, catalog=other.url)
    assert eu.log.catalog.read(links) == before
    assert other.log.catalog.read(links) == {}
    assert not other.log.streams()
    other.close()
    link(eu.log, "orders", "us", here=eu.url, catalog=us.url)  # the same again changes nothing
    assert eu.log.catalog.read(links) == before


@pytest.mark.parametrize(
    "address", ["postgresql://me:sekret@db/app", "postgresql://me@db/app?password=sekret"]
)
def test_an_address_that_holds_a_password_is_not_stored_nor_shown(eu: Place, address: str) -> None:
    with pytest.raises(LinkError, match="must not hold a password") as refused:
        link(eu.log, "orders", "us", here=eu.url, catalog=address)
    assert "sekret" not in str(refused.value)
    assert eu.log.catalog.read(links) == {}


def test_where_a_stream_is_not_written_the_error_names_where_it_is(eu: Place, us: Place) -> None:
    link(eu.log, "orders", "us", here=eu.url, catalog=us.url, writers="eu")
    with pytest.raises(NotWrittenHereError, match="publish where it is"):
        us.log.append("orders", [Event(subject="orders.1", value=b"x")])
    with pytest.raises(LinkError, match="writers='eu'"):
        link(eu.log, "orders", "us", here=eu.url, catalog=us.url, writers="all")
