"""The page of metrics, the dashboard and the alert rules name what is there; the text is sound."""

from __future__ import annotations

import re
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from headrace.node.history import History
from headrace.node.metrics import METRICS, NodeFacts, rendered
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
