"""Which regions get what is published: ``--regions`` on the command line, ``regions=`` of calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import sync
from headrace.catalog.streams import StreamConfig
from headrace.errors import InvalidInputError, LinkError
from headrace.regions import leaving
from headrace.regions.status import status
from tests.cli.conftest import Cli
from tests.regions.runtime.world import Place, linked


@pytest.fixture
def three(cli: Cli) -> Iterator[dict[str, Place]]:
    """Three linked regions, in the folder in which commands run."""
    made = {name: Place(name, str(Path(name).absolute())) for name in ("eu", "us", "ap")}
    linked(made.values(), segments=1)
    yield made
    for each in made.values():
        each.close()


def values(place: Place, *sources: str) -> list[bytes]:
    place.pull(*sources)
    return [value for _, _, value in place.origins()[0]]


def test_events_go_to_the_regions_that_are_named(cli: Cli, three: dict[str, Place]) -> None:
    Path("rows.csv").write_text("subject,value\norders.1,file\n")
    publish = ("--catalog", "eu", "publish")
    for words, stdin in (
        (("orders.1", "all"), b""),
        (("orders.1", "us", "--regions", "us"), b""),
        (("orders.1", "both", "--regions", "eu, us,ap"), b""),
        (("orders.1", "here", "--regions", ""), b""),
        (("orders.1", "--lines", "--regions", "ap"), b"l1\nl2\n"),
        (("--json-lines", "--regions", "ap"), b'{"subject": "orders.1", "value": "json"}\n'),
        (
            ("--file", "rows.csv", "--subject", "{subject}", "--value", "value", "--regions", "us"),
            b"",
        ),
    ):
        done = cli(*publish, *words, stdin=stdin)
        assert done.status == 0, done.err
    assert values(three["us"], "eu") == [b"all", b"us", b"both", b"file"]
    assert values(three["ap"], "eu") == [b"all", b"both", b"l1", b"l2", b"json"]
    assert len(values(three["eu"])) == 8
    # Every lane is dense wherever it is.
    for place in three.values():
        seen: dict[str, int] = {}
        for lane, sequence, _ in place.origins()[0]:
            assert sequence == seen.get(lane, 0)
            seen[lane] = sequence + 1


def test_a_region_that_is_none_is_refused(cli: Cli, three: dict[str, Place]) -> None:
    publish = ("--catalog", "eu", "publish")
    for given, mend in (("tokyo", "linked to ap, us"), ("us,,ap", "names an empty region")):
        done = cli(*publish, "orders.1", "x", "--regions", given)
        assert (done.status, done.out) == (2, "")
        assert mend in done.err
    three["eu"].log.create_stream("plain", StreamConfig(subjects=("plain.>",)))
    for where in ("us", ""):
        done = cli(*publish, "plain.1", "x", "--regions", where)
        assert done.status == 2
        assert "region link plain" in done.err
    with sync.open("eu") as hr:
        for bad in ("us", 5, [1]):
            with pytest.raises(InvalidInputError, match="regions"):
                hr.publish("orders.1", b"x", regions=bad)  # type: ignore[arg-type]
        with pytest.raises(LinkError, match="not to 'tokyo'"):
            hr.publish("orders.1", b"x", regions=["tokyo"])
    assert values(three["eu"]) == []


def test_events_for_one_region_that_wait_count_as_its_lag(three: dict[str, Place]) -> None:
    """A region is not taken out while they have not come."""
    with sync.open("eu") as hr:
        hr.publish("orders.1", b"x", regions=["us"])
        hr.publish("orders.1", b"y", regions=[])
    us, ap = three["us"], three["ap"]
    for each, count in ((us, 1), (ap, 0)):
        each.pull("eu" if each is ap else "ap")
        found = {one.region: one.lag_events for one in status(each.log, each.neighbours).links}
        assert found["eu"] == count
    with pytest.raises(LinkError, match="1 events of stream 'orders' have not come"):
        leaving.remove(us.log, "eu", us.neighbours, dry_run=True)
    us.pull("eu")
    assert leaving.remove(us.log, "eu", us.neighbours, dry_run=True).streams == ("orders",)
