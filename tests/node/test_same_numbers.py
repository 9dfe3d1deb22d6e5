"""How far a group is behind is one number, wherever it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

import headrace
from headrace.cli import run
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join
from tests.node.support import RunningNode


class Behind(NamedTuple):
    """What has to be the same; seconds go on between two looks."""

    events: int
    bytes: int
    exact: bool
    lost: int | None


async def something_of_everything(hr: headrace.Headrace) -> None:
    """Groups of every kind: acked in part, filtered, with no pipeline, trimmed past, at the end."""
    await hr.create_stream("orders", ["orders.*.*"], segments=2)
    await hr.create_stream("parts", ["parts.>"], partitions=2)
    for batch in range(3):
        for stream in ("orders", "parts"):
            made = [
                headrace.Event(subject=f"{stream}.{batch}.{n}", value=bytes(20 + n), key=f"key {n}")
                for n in range(8)
            ]
            await hr.append(stream, made)
    await hr.groups.create_static("parts", "audit", max_members=2, members=["m1", "m2"])
    await hr.groups.create_static("parts", "behind", max_members=2, members=["m1"])
    await hr.groups.create_elastic(
        "orders", "billing", max_members=2, filter="orders.*.*", wildcards=[2], members=["m1"]
    )
    for name, filter in (("all", "orders.>"), ("some", "orders.1.*")):
        await hr.shared_groups.declare(name, filter, start="earliest")
    await hr.shared_groups.declare("done", "parts.>", start="now")
    await hr.reader_groups.create("report", streams=["orders", "parts"])
    parts = [segment.id for segment in hr.log.stream("parts").segments]
    ranges = Progress(2, ((3, 5),))
    hr.log.catalog.write(
        lambda tx: join(tx, GroupName("parts", "audit").key, dict.fromkeys(parts, ranges))
    )
    segment = hr.log.stream("orders").segments[0]
    hr.log.trim("orders", {0: segment.head})


def of_lag(found: Mapping[str, Any]) -> Behind:
    return Behind(
        found["lag_events"], found["lag_bytes"], found["exact"], found.get("lost_to_trimming")
    )


@pytest.fixture
def full(any_node: RunningNode) -> RunningNode:
    any_node.do(something_of_everything(any_node.hr))
    any_node.do(any_node.served.node.observer.next())
    return any_node


def test_every_way_to_ask_gives_the_same_number(
    full: RunningNode, catalog_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> Any:
        capsys.readouterr()
        assert run(["--catalog", catalog_url, "--json", *words]) in (0, 1), words
        return json.loads(capsys.readouterr().out)

    views = full.do(full.hr.groups.all())
    wanted = {
        view.group: Behind(
            view.lag.events, view.lag.bytes, view.lag.exact, view.lag.lost_to_trimming
        )
        for view in views
    }
    assert {view.kind for view in views} == {"static", "elastic", "shared", "reader"}
    assert {behind.exact for behind in wanted.values()} == {True, False}
    assert any(behind.lost for behind in wanted.values())
    assert 0 in {behind.events for behind in wanted.values()}
    for where, found in ways(full, told, list(wanted)):
        assert found.keys() <= wanted.keys(), where
        for name, behind in found.items():
            lost = wanted[name].lost if behind.lost is None else behind.lost
            assert behind._replace(lost=lost) == wanted[name], (where, name)


def ways(
    node: RunningNode, told: Callable[..., Any], names: list[str]
) -> Iterator[tuple[str, dict[str, Behind]]]:
    """Each way to ask, and what it says of the groups that it names."""
    lags = node.do(node.hr.groups.lag_of_all())
    yield (
        "API",
        {one.group: Behind(one.events, one.bytes, one.exact, one.lost_to_trimming) for one in lags},
    )
    for words in ("status", "group ls"):
        found = told(*words.split())
        groups = found["groups"] if words == "status" else found
        assert [each["group"] for each in groups] == names
        yield words, {each["group"]: of_lag(each["lag"]) for each in groups}
    yield "group lag", {each["group"]: of_lag(each) for each in told("group", "lag")}
    for name in names:
        yield "group lag NAME", {name: of_lag(told("group", "lag", name))}
        yield "group info", {name: of_lag(told("group", "info", name)["lag"])}
        yield "group explain", {name: of_lag(told("group", "explain", name)["group"]["lag"])}
        page = f"/groups/{quote(name, safe='')}"
        answer = node.get(page)
        yield "console: line", {name: of_lag(answer["line"])}
        yield "console: group", {name: of_lag(answer["lag"])}
        yield "console: lag", {name: of_lag(node.get(f"{page}/lag"))}
    in_streams: dict[str, Behind] = {}
    for stream in ("orders", "parts"):
        consumers = told("stream", "info", stream)["consumers"]
        for each in consumers:  # what a group misses in this stream alone
            part, rest = of_lag(each), in_streams.get(each["group"], Behind(0, 0, True, None))
            in_streams[each["group"]] = Behind(
                part.events + rest.events, part.bytes + rest.bytes, part.exact and rest.exact, None
            )
        lines = [each["line"] for each in node.get(f"/streams/{stream}")["groups"]]
        assert {each["group"] for each in consumers} == {each["group"] for each in lines}
        yield "console: stream", {each["group"]: of_lag(each) for each in lines}
    assert in_streams.keys() == set(names)
    yield "stream info", in_streams
    yield "reader lag", {"reader/report": of_lag(told("reader", "lag", "report"))}
    lines = node.get("/groups")["groups"]
    assert {each["group"] for each in lines} == set(names)
    yield "console: groups", {each["group"]: of_lag(each) for each in lines}
    yield "metrics", dict(in_metrics(node, lags))


def in_metrics(
    node: RunningNode, lags: Sequence[headrace.GroupLag]
) -> Iterator[tuple[str, Behind]]:
    """What Prometheus reads; it does not say what is exact."""
    text = node.ask("GET", "/metrics").body.decode()
    figures = {
        (family.name, sample.labels["group"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "group" in sample.labels
    }
    for one in lags:
        events, size, lost = (
            int(figures[f"headrace_group_{what}", one.group])
            for what in ("lag_events", "lag_bytes", "lost_to_trimming_events")
        )
        yield one.group, Behind(events, size, one.exact, lost)
