"""The page of metrics, the dashboard and the alert rules name what is there; the text is sound."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from headrace.node import metrics
from headrace.node.history import History
from headrace.node.metrics import METRICS, Families, NodeFacts, rendered
from headrace.node.shapes import Look
from tests import metrics_page
from tests.node.support import RunningNode, running


def test_the_page_and_the_dashboard_are_made_from_the_code() -> None:
    said = "run: python -m tests.metrics_page"
    assert metrics_page.PAGE.read_text() == metrics_page.page(), said
    assert metrics_page.DASHBOARD.read_text() == metrics_page.dashboard(), said


def test_the_dashboard_and_the_rules_name_metrics_that_exist() -> None:
    known = {each.name for each in METRICS}
    for file in (metrics_page.DASHBOARD, metrics_page.ALERTS):
        named = set(re.findall(r"headrace_[a-z_]+", file.read_text()))
        assert len(named) >= 7
        assert named <= known, named - known


def test_the_text_is_what_prometheus_reads(node: RunningNode) -> None:
    text = node.ask("GET", "/metrics").body.decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert families["headrace_build_info"].samples[0].value == 1
    assert families["headrace_node_looks"].type == "counter"


class Parsed(Collector):
    """The families of a text, as prometheus-client reads them."""

    def __init__(self, text: str) -> None:
        self._text = text

    def collect(self) -> Iterator[Metric]:
        yield from text_string_to_metric_families(self._text)


def as_prometheus_writes_it(text: bytes) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Parsed(text.decode()))
    return generate_latest(registry)


@pytest.mark.parametrize(
    "value", [0, 7, -3, 0.125, 1e-7, 999_999, 999_999.5, 1_000_000, 12_345_678, 2**40, 2**70, 1e21]
)
def test_numbers_are_written_as_prometheus_writes_them(value: float) -> None:
    into = Families()
    into.add("stream_events", value, stream="orders")
    text = into.text().encode()
    assert as_prometheus_writes_it(text) == text
    (family,) = text_string_to_metric_families(text.decode())
    assert family.samples[0].value == float(value)


def test_the_text_is_as_prometheus_writes_it_whatever_labels_hold(node: RunningNode) -> None:
    node.do(node.hr.create_stream("orders", ["orders.>"], partitions=2))
    node.do(node.hr.groups.create_static("orders", "billing", max_members=2, members=["m1"]))
    node.do(node.hr.shared_groups.declare("audit", "orders.>", start="earliest"))
    node.do(node.served.node.observer.next())
    look = node.served.node.observer.look
    assert look is not None
    odd = 'a "quoted" \\ and\nbroken ☃ {name}'
    groups = dict(look.groups)
    groups[odd] = msgspec.structs.replace(groups["$share/audit/orders.>"], group=odd, filter=odd)
    look = msgspec.structs.replace(look, groups=groups, letters={odd: 3})
    facts = NodeFacts(version='"1"', look_age_s=0.5, away=False, listeners=2, per_unit=True)
    decided = Counter({(odd, "fenced"): 2, (odd, "elected"): 1})
    text = rendered(look, History(), decided, facts)
    assert as_prometheus_writes_it(text) == text
    families = {each.name: each for each in text_string_to_metric_families(text.decode())}
    letters = {
        each.labels["group"]: each.value for each in families["headrace_group_dead_letters"].samples
    }
    assert letters[odd] == 3
    for about in METRICS:
        found = families.get(about.name.removesuffix("_total"))
        assert found is None or all(set(each.labels) == set(about.labels) for each in found.samples)


def test_between_two_looks_only_what_the_node_says_of_itself_is_written_again(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def of_look(look: Look, *args: Any, **options: Any) -> bytes:
        written.append(look.number)
        return metrics.of_look(look, *args, **options)

    monkeypatch.setattr("headrace.node.node.of_look", of_look)
    for listeners in range(20):
        node.served.node._metrics = (None, b"")  # as if ten seconds had gone by
        monkeypatch.setattr(type(node.served.node.live), "listeners", listeners)
        assert b"headrace_node_listeners %d.0\n" % listeners in node.served.node.metrics()
    assert len(written) == len(set(written)) < 20


def test_the_text_is_made_once_for_each_look(node: RunningNode) -> None:
    made = node.served.node.metrics()
    assert node.served.node.metrics() is made


def test_units_have_series_only_on_demand_and_not_too_many(
    tmp_path: object, monkeypatch: object
) -> None:
    with running(f"{tmp_path}/catalog", metrics_per_unit=True) as node:
        node.do(node.hr.create_stream("orders", ["orders.>"], segments=4))
        node.do(node.hr.shared_groups.declare("audit", "orders.>", start="earliest"))
        node.do(node.served.node.observer.next())
        look = node.served.node.observer.look
        assert look is not None
        facts = NodeFacts(version="1", look_age_s=0, away=False, listeners=0, per_unit=True)
        every = rendered(look, History(), Counter(), facts).decode()
        assert every.count("headrace_unit_lag_events{") == len(
            look.groups["$share/audit/orders.>"].units
        )
        assert "headrace_metrics_truncated 0.0" in every
        monkeypatch.setattr("headrace.node.metrics.UNITS_MAX", 2)  # type: ignore[attr-defined]
        some = rendered(look, History(), Counter(), facts).decode()
        assert some.count("headrace_unit_lag_events{") == 2
        assert "headrace_metrics_truncated 1.0" in some
