"""One way to name a group, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.catalog import Tx, entries
from headrace.catalog.streams import StreamConfig
from headrace.errors import (
    AmbiguousGroupNameError,
    HeadraceError,
    InvalidInputError,
    InvalidNameError,
    UnknownGroupError,
    UnknownGroupNameError,
)
from headrace.groups import looks, names
from headrace.groups.names import FullName, NameForm
from headrace.groups.partitioned import admin
from headrace.groups.readers import admin as readers
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.shared.admin import Groups
from headrace.log.log import Log

BILLING = FullName("partitioned", "orders", "billing")
AUDIT = FullName("shared", "orders.>", "audit")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("orders/billing", BILLING),
        ("partitioned/orders/billing", BILLING),
        ("$share/audit/orders.>", AUDIT),
        ("$share/audit/orders/#", AUDIT),
        ("$shared/audit/orders.>", AUDIT),
        ("$queue/audit/orders/#", AUDIT),
        ("shared/audit/orders.>", AUDIT),
        ("audit:orders.>", AUDIT),
        ("billing", None),
    ],
)
def test_every_spelling_of_a_name_means_the_same(text: str, wanted: FullName | None) -> None:
    assert names.parse(text) == wanted
    if wanted is not None:
        assert names.parse(str(wanted)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "a/", "/a", "a/b/c", "a b", "a/$b", "x" * 2_000, "a/" + "x" * 65),
        *("$share", "$share/audit", "$share/audit/", "$other/a/b", "$share/audit/orders.+"),
        *("audit:", ":orders.>"),
    ],
)
def test_what_is_no_name_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        names.parse(text)
    assert len(str(raised.value)) < 400


@pytest.fixture
def groups(log: Log) -> Log:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)), 1)
    log.create_stream("bills", StreamConfig(subjects=("bills.>",)), 1)
    for stream in ("orders", "bills"):
        admin.create_elastic(
            log, stream, "billing", max_members=2, filter=f"{stream}.*", wildcards=[1]
        )
    admin.create_elastic(log, "bills", "extra", max_members=2, filter="bills.*", wildcards=[1])
    Groups(log).declare("audit", "orders.>")
    return log


def resolve(log: Log, text: str) -> FullName:
    return log.catalog.read(lambda tx: names.resolve(tx, text), snapshot=True)


def test_a_plain_name_is_enough_where_only_one_fits(groups: Log) -> None:
    assert resolve(groups, "extra") == FullName("partitioned", "bills", "extra")
    assert resolve(groups, "audit") == AUDIT
    assert resolve(groups, "orders/billing") == BILLING
    assert resolve(groups, "$share/audit/orders/#") == AUDIT


def test_an_ambiguous_name_is_refused_with_those_that_fit(groups: Log) -> None:
    with pytest.raises(AmbiguousGroupNameError, match="bills/billing, orders/billing") as raised:
        resolve(groups, "billing")
    assert raised.value.known == ("bills/billing", "orders/billing")


@pytest.mark.parametrize("text", ["nobody", "orders/nobody", "$share/audit/bills.>"])
def test_an_unknown_name_is_refused_with_those_there_are(groups: Log, text: str) -> None:
    with pytest.raises(UnknownGroupNameError) as raised:
        resolve(groups, text)
    assert isinstance(raised.value, UnknownGroupError | InvalidInputError)
    assert set(raised.value.known) == {
        "bills/billing",
        "bills/extra",
        "orders/billing",
        "$share/audit/orders.>",
    }


def test_an_unknown_name_shows_the_nearest_first(groups: Log) -> None:
    with pytest.raises(UnknownGroupNameError) as raised:
        resolve(groups, "orders/extra")
    assert raised.value.known[0] == "bills/extra"


def test_of_many_groups_an_error_lists_some(log: Log) -> None:
    def many(tx: Tx) -> None:
        for number in range(30):
            entries.put(tx, names.SHARED_BUCKET, f"g{number}:orders.>", b"{}")

    log.catalog.write(many, locks=[entries.lock(names.SHARED_BUCKET)])
    with pytest.raises(UnknownGroupNameError, match="and 10 more"):
        resolve(log, "nobody")


def test_of_a_full_name_nothing_is_read_of_other_groups(
    groups: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers.create(groups, "report", given=["orders"], start="earliest", end=None, filter=None,
                   config=GroupConfig())  # fmt: skip
    full = [str(name) for name in groups.catalog.read(names.all_names)]
    assert {names.parse(text).family for text in full} == set(names.families())  # type: ignore[union-attr]

    def refuse(tx: Tx) -> list[FullName]:
        raise AssertionError("every group was listed")

    monkeypatch.setattr(names, "all_names", refuse)
    for text in full:
        assert str(resolve(groups, text)) == text
        looks.decisions_of_one(groups.catalog, text, 100)


def test_where_there_is_none_it_says_so(log: Log) -> None:
    with pytest.raises(UnknownGroupNameError, match="no groups yet"):
        resolve(log, "billing")


@pytest.fixture
def another_family() -> Iterator[None]:
    def read(rest: str) -> FullName:
        return FullName("thing", "", rest)

    names.register(
        NameForm(
            family="thing",
            takes="thing/GROUP",
            read=read,
            text=lambda name: f"thing/{name.group}",
            key=lambda name: f"thing {name.group}",
            listed=lambda tx: [FullName("thing", "", "report")],
        )
    )
    yield
    del names._forms["thing"]


def test_another_kind_of_group_has_its_own_family_of_names(
    another_family: None, groups: Log
) -> None:
    assert str(resolve(groups, "report")) == "thing/report"
    assert resolve(groups, "thing/report").key == "thing report"
    # A stream may have the name of a family: its groups have another name.
    of_stream = FullName("partitioned", "thing", "report")
    assert str(of_stream) == "partitioned/thing/report"
    assert names.parse(str(of_stream)) == of_stream


def test_a_name_that_is_too_long_says_how_long(log: Log) -> None:
    with pytest.raises(InvalidNameError, match="2000 characters; at most 1000"):
        resolve(log, "x" * 2_000)


def test_errors_of_names_are_errors_of_headrace() -> None:
    assert issubclass(AmbiguousGroupNameError, HeadraceError)
