"""What is refused between regions: status 2, one line that says what to do, nothing changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog import schema
from headrace.catalog.streams import StreamConfig
from headrace.cli import run
from headrace.groups.partitioned.lifecycle import create_static
from headrace.groups.readers.admin import create as create_readers
from headrace.groups.readers.core.settings import GroupConfig
from headrace.log.open import open_log
from headrace.regions import enabling, moving
from headrace.regions.linking import link, name_region
from headrace.regions.records import groups, links
from headrace.regions.runtime.neighbours import Neighbours

FULL = "x" * 65


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two regions with linked streams, a group that is at home, and one on both sides."""
    folder = tmp_path_factory.mktemp("regions")
    near = Neighbours()
    eu, us = open_log(folder / "eu"), open_log(folder / "us")
    name_region(eu, "eu")
    name_region(us, "us")
    for name in ("orders", "one"):
        eu.create_stream(name, StreamConfig(subjects=(f"{name}.>",), partitions=2))
        writers = "us" if name == "one" else "all"
        link(eu, name, "us", here=str(folder / "eu"), catalog=folder / "us", writers=writers)
        create_static(eu, name, "billing", max_members=2, members=["m1"])
    create_static(eu, "orders", "twice", max_members=2, members=["m1"])
    create_static(us, "orders", "twice", max_members=2, members=["m1"])
    enabling.enable(eu, "orders.billing", near, home="eu")
    create_static(eu, "orders", "moving", max_members=2, members=["m1"])
    enabling.enable(eu, "orders.moving", near, home="eu")
    moving._begin_switch(eu, "orders.moving", "eu", "us")
    us.create_stream("ranges", StreamConfig(subjects=("ranges.>",)), 3)
    eu.create_stream("ranges", StreamConfig(subjects=("ranges.>",)), 2)
    us.create_stream("subjects", StreamConfig(subjects=("subjects.a.>",)))
    eu.create_stream("subjects", StreamConfig(subjects=("subjects.>",)))
    us.create_stream("keys", StreamConfig(subjects=("keys.*.*",), key_tokens=(2,)))
    eu.create_stream("keys", StreamConfig(subjects=("keys.*.*",), key_tokens=(1,)))
    (folder / "alias").symlink_to(folder / "eu")
    for name, given in (
        ("differs", StreamConfig(subjects=("differs.>",), partitions=3)),
        ("inside", StreamConfig(subjects=("outside.eu.>",))),
    ):
        us.create_stream(name, given)
    eu.create_stream("differs", StreamConfig(subjects=("differs.>",), partitions=2))
    eu.create_stream("outside", StreamConfig(subjects=("outside.>",)))
    for group, read, end in (
        ("report", ["orders", "one"], None),
        ("partly", ["orders", "outside"], None),
        ("ending", ["orders"], {"orders/0": 0, "orders/1": 0}),
    ):
        create_readers(
            eu, group, given=read, start="earliest", end=end, filter=None, config=GroupConfig()
        )
    open_log(folder / "blank").catalog.close()
    newer = open_log(folder / "newer")
    name_region(newer, "us")
    newer.catalog.write(lambda tx: schema.put_setting(tx, "schema_version", "999"))
    for log in (eu, us, newer):
        log.catalog.close()
    near.close()
    return folder


CASES: dict[str, tuple[str, str]] = {
    "no name": ("--catalog blank region link orders us=us", "headrace region name NAME"),
    "a bad name": ("--catalog blank region name e!u", "use 1 to 64 of the characters"),
    "a long name": (f"--catalog blank region name {FULL}", "use 1 to 64 of the characters"),
    "another name": ("--catalog eu region name ap", "make another catalog for 'ap'"),
    "itself": ("--catalog eu region link outside eu=eu", "link a stream to another region"),
    "the same catalog": ("--catalog eu region link outside us=eu", "give another region's"),
    "another address": ("--catalog eu region link outside us=us/../eu", "is this very catalog"),
    "an alias": ("--catalog eu region link outside us=alias", "is this very catalog"),
    "no catalog": ("--catalog eu region link outside us=none", "none region name us"),
    "too new": ("--catalog eu region link outside us=newer", "upgrade Headrace"),
    "another's name": ("--catalog eu region link outside ap=us", "is region 'us', not 'ap'"),
    "no password": (
        "--catalog eu region link outside us=postgresql://a@localhost:1/d --credentials env:NONE_X",
        "--credentials",
    ),
    "a password": (
        "--catalog eu region link outside us=postgresql://a:hidden@localhost:1/d",
        "--credentials env:NAME",
    ),
    "differs": ("--catalog eu region link differs us=us", "partitions 2 here and 3 there"),
    "other subjects": ("--catalog eu region link subjects us=us", "subjects ('subjects.>',) here"),
    "other ranges": ("--catalog eu region link ranges us=us", "has another key range there"),
    "other keys": ("--catalog eu region link keys us=us", "here and"),
    "overlaps": ("--catalog eu region link outside us=us", "change or delete that stream there"),
    "writers": ("--catalog eu region link outside us=us --writers ap", "one of eu, us"),
    "future": ("--catalog eu region link outside us=us --backfill 2999-01-01", "give 'none'"),
    "home": ("--catalog eu region group enable one billing --home ap", "the regions eu, us"),
    "twice": ("--catalog eu region group enable orders twice", "--adopt eu"),
    "one way": ("--catalog eu region group enable one billing --mode snapshot", "a way back"),
    "two modes": ("--catalog eu region group enable orders billing --mode snapshot", "one mode"),
    "no mode": ("--catalog eu region group enable one billing --mode both", "origin, snapshot"),
    "to nowhere": ("--catalog eu region switch orders billing --to ap", "none of the regions"),
    "to itself": ("--catalog eu region switch orders billing --to eu", "at home in eu already"),
    "under way": ("--catalog eu region switch orders moving --to us", "on its way to us already"),
    "and back": ("--catalog eu region switch orders moving --to eu", "on its way to us already"),
    "too long": ("--catalog eu region switch orders billing --to us --timeout 9h", "3600 seconds"),
    "adopts none": ("--catalog eu region group enable orders twice --adopt ap", "regions eu, us"),
    "no such home": (
        "--catalog eu group static create orders new --max-members 2 --members m1 --home ap",
        "none of the regions eu, us",
    ),
    "no limit": ("--catalog eu region snapshot list orders --limit 0", "give 1 to 1000"),
    "no time": ("--catalog eu region switch orders billing --to us --timeout 0s", "more than 0"),
    "no group": ("--catalog eu region switch orders none --to us", "group enable orders/none"),
    "lost nowhere": ("--catalog eu region fail-over --lost ap", "is linked to us, and not to 'ap'"),
    "lost itself": ("--catalog eu region fail-over --lost eu", "in a survivor"),
    "it answers": ("--catalog eu region fail-over --lost us", "say --force"),
    "promote": ("--catalog eu region promote one", "say --force"),
    "not written": ("--catalog eu publish one.1 x", "headrace region status"),
    "for ever": ("--catalog eu region synced orders billing --wait 9h", "3600 seconds at most"),
    "no tasks": ("--catalog eu region check orders --master local[1]", "goes with --deep"),
    "unlinked": ("--catalog eu region check outside --deep", "linked are: one, orders"),
    "readers of no home": ("--catalog eu region group enable reader/report", "--home"),
    "readers by snapshot": (
        "--catalog eu region group enable reader/report --home eu --mode snapshot",
        "leave mode out",
    ),
    "readers unlinked": (
        "--catalog eu region group enable reader/partly --home eu",
        "region link outside",
    ),
    "readers with an end": (
        "--catalog eu region group enable reader/ending --home eu",
        "without an end",
    ),
    "new readers unlinked": (
        "--catalog eu reader create new --streams orders,outside --home eu",
        "linked are: one, orders",
    ),
    "new readers nowhere": (
        "--catalog eu reader create new --streams orders --home ap",
        "none of the regions eu, us",
    ),
    "no filter": ("--catalog eu region link outside us=us --filter a..b", "invalid filter"),
    "nothing passes": ("--catalog eu region link outside us=us --filter in.>", "outside.>"),
    "another filter": ("--catalog eu region link orders us=us --filter orders.a", "region unlink"),
    "published nowhere": ("--catalog eu publish orders.1 x --regions ap", "not to 'ap'"),
    "published to none": ("--catalog eu publish outside.1 x --regions us", "region link outside"),
    "an empty region": ("--catalog eu publish orders.1 x --regions us,,eu", "'' for none"),
    "no snapshots": ("--catalog eu region snapshot now orders", "--mode snapshot"),
}


def state(folder: Path) -> list[Any]:
    found: list[Any] = []
    for name in ("eu", "us"):
        log = open_log(folder / name)
        found += [log.catalog.read(links), log.catalog.read(groups), log.streams()]
        log.catalog.close()
    return found


def test_what_is_refused_changes_nothing(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made)
    before = state(made)
    for what, (command, mend) in CASES.items():
        assert run(command.split()) == 2, what
        told = capsys.readouterr()
        assert mend in told.err, (what, told.err)
        assert len(told.err.splitlines()) == 1, (what, told.err)
        assert not told.out, what
        assert "hidden" not in told.err
    assert state(made) == before


def test_a_region_that_lacks_a_group_is_named(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made)
    assert run(["--catalog", "eu", "region", "explain", "orders", "billing"]) == 0
    assert "us does not have it yet" in capsys.readouterr().out
    assert run(["--catalog", "eu", "region", "status"]) == 0
    assert "not in us yet" in capsys.readouterr().out
    shutil.move("us", "away")
    try:
        assert run(["--catalog", "eu", "region", "explain", "orders", "billing"]) == 0
        assert "us cannot be read now" in capsys.readouterr().out
        assert run(["--catalog", "eu", "region", "check", "orders"]) == 1
    finally:
        shutil.move("away", "us")
