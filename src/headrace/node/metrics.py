"""Metrics for Prometheus: gauges of the last look, and counters since this node began.

The text is made once for each look, and served from memory until the next.  ``METRICS`` is the one
list: ``docs/metrics.md``, the dashboard and the alert rules are checked against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.groups.shapes import GroupView
from headrace.node.history import GROUP, History
from headrace.node.shapes import Look

UNITS_MAX = 10_000
"""The most series of single units that are given."""


class MetricInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


_G = ("group", "kind", "stream")


def _m(name: str, kind: str, labels: tuple[str, ...], help: str) -> MetricInfo:
    return MetricInfo(name=f"headrace_{name}", kind=kind, labels=labels, help=help)


METRICS: tuple[MetricInfo, ...] = (
    _m("group_lag_events", "gauge", _G, "Events that the group has not acked."),
    _m("group_lag_bytes", "gauge", _G, "Bytes from its first unacked event on."),
    _m("group_lag_seconds", "gauge", _G, "Since its oldest unacked event was appended."),
    _m("group_acked_events_per_second", "gauge", _G, "How fast it acks."),
    _m("group_members", "gauge", (*_G, "state"), "Members by state."),
    _m("group_units", "gauge", (*_G, "state"), "Units by state."),
    _m("group_dead_letters", "gauge", _G, "Letters that were neither put back nor discarded."),
    _m(
        "group_lost_to_trimming_events",
        "gauge",
        _G,
        "Events that were trimmed before the group acked them; an upper bound.",
    ),
    _m("group_findings", "gauge", (*_G, "finding"), "What is not as it should be: 1 while so."),
    _m(
        "group_decisions_total",
        "counter",
        ("group", "what"),
        "Decisions about the group since this node began.",
    ),
    _m(
        "group_fenced_acks_total",
        "counter",
        ("group",),
        "Instances that were refused since this node began, since another owns what they held.",
    ),
    _m("leader_changes_total", "counter", ("group",), "Leaders elected since this node began."),
    _m(
        "unit_lag_events",
        "gauge",
        ("group", "unit"),
        "Unacked events of a unit; with --metrics-per-unit.",
    ),
    _m("stream_events", "gauge", ("stream",), "Events that the stream retains."),
    _m("stream_bytes", "gauge", ("stream",), "Bytes that it retains."),
    _m("stream_segments", "gauge", ("stream", "state"), "Segments, open and sealed."),
    _m("stream_appended_events_total", "counter", ("stream",), "Events since it was made."),
    _m("pipeline_led", "gauge", (), "1 if a supervisor leads the pipeline."),
    _m("pipeline_job_lag_events", "gauge", ("job", "kind"), "Events that the job has to move."),
    _m("pipeline_job_rate", "gauge", ("job", "kind"), "Events a second that it moves."),
    _m("pipeline_job_failures_total", "counter", ("job", "kind"), "Failures in a row."),
    _m("sessions", "gauge", ("state",), "Sessions of workers: running or not."),
    _m("catalog_bytes", "gauge", (), "What the catalog takes on its disk."),
    _m("catalog_away", "gauge", (), "1 while the catalog cannot be read."),
    _m("node_look_seconds", "gauge", (), "CPU time of the last look."),
    _m("node_looks_total", "counter", (), "Looks since this node began."),
    _m("node_look_age_seconds", "gauge", (), "How old the last look is."),
    _m("node_listeners", "gauge", (), "Who listens to live streams of this node."),
    _m("metrics_truncated", "gauge", (), "1 if units were left out, since there are too many."),
    _m("build_info", "gauge", ("version",), "Always 1."),
)

_BY_NAME = {each.name: each for each in METRICS}


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows of itself."""

    version: str
    look_age_s: float
    away: bool
    listeners: int
    per_unit: bool


class Families:
    """Families of samples, made when first used."""

    def __init__(self) -> None:
        self.found: dict[str, Metric] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """A sample of a metric of the list."""
        about = _BY_NAME[f"headrace_{name}"]
        family = self.found.get(about.name)
        if family is None:
            if about.kind == "counter":
                base = about.name.removesuffix("_total")
                family = CounterMetricFamily(base, about.help, labels=about.labels)
            else:
                family = GaugeMetricFamily(about.name, about.help, labels=about.labels)
            self.found[about.name] = family
        family.add_metric(labels, value)  # type: ignore[attr-defined]


class LookCollector(Collector):
    """The samples of one look."""

    def __init__(
        self,
        look: Look | None,
        history: History,
        decided: Counter[tuple[str, str]],
        facts: NodeFacts,
    ) -> None:
        self._look = look
        self._history = history
        self._decided = decided
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        into = Families()
        _node(into, self._look, self._facts)
        if self._look is not None:
            for group in self._look.groups.values():
                _group(into, self._look, self._history, group)
            for (name, what), count in self._decided.items():
                into.add("group_decisions_total", count, name, what)
                if what == "fenced":
                    into.add("group_fenced_acks_total", count, name)
                elif what == "elected":
                    into.add("leader_changes_total", count, name)
            _streams(into, self._look)
            _pipeline(into, self._look)
            if self._facts.per_unit:
                _units(into, self._look)
        yield from into.found.values()


def _node(into: Families, look: Look | None, facts: NodeFacts) -> None:
    into.add("build_info", 1, facts.version)
    into.add("node_look_age_seconds", round(facts.look_age_s, 3))
    into.add("node_listeners", facts.listeners)
    into.add("catalog_away", int(facts.away))
    if look is not None:
        into.add("node_look_seconds", round(look.cpu_s, 6))
        into.add("node_looks_total", look.number)
        into.add("catalog_bytes", look.catalog_bytes)
        running = sum(each.node is not None for each in look.sessions)
        into.add("sessions", running, "running")
        into.add("sessions", len(look.sessions) - running, "not running")


def _group(into: Families, look: Look, history: History, group: GroupView) -> None:
    of = (group.group, group.kind, group.stream or ",".join(group.streams) or group.filter or "")
    into.add("group_lag_events", group.lag.events, *of)
    into.add("group_lag_bytes", group.lag.bytes, *of)
    into.add("group_lag_seconds", round(group.lag.seconds, 3), *of)
    into.add("group_dead_letters", look.letters.get(group.group, 0), *of)
    into.add("group_lost_to_trimming_events", group.lag.lost_to_trimming, *of)
    rate = history.rates.get((GROUP, group.group), 0.0)
    into.add("group_acked_events_per_second", round(rate, 3), *of)
    for state, count in Counter(each.state for each in group.members).items():
        into.add("group_members", count, *of, state)
    for state, count in Counter(each.state for each in group.units).items():
        into.add("group_units", count, *of, state)
    for finding in dict.fromkeys(each.finding for each in group.findings):
        into.add("group_findings", 1, *of, finding)


def _streams(into: Families, look: Look) -> None:
    for name, stream in look.streams.items():
        opened = len(stream.open_segments)
        into.add("stream_events", sum(s.events for s in stream.segments), name)
        into.add("stream_bytes", sum(s.retained_bytes for s in stream.segments), name)
        into.add("stream_segments", opened, name, "open")
        into.add("stream_segments", len(stream.segments) - opened, name, "sealed")
        into.add("stream_appended_events_total", sum(s.head for s in stream.segments), name)


def _pipeline(into: Families, look: Look) -> None:
    into.add("pipeline_led", int(look.pipeline.led))
    for job in look.pipeline.jobs:
        of = (job.name, str(getattr(job.kind, "value", job.kind)))
        into.add("pipeline_job_rate", round(job.rate_per_s, 3), *of)
        into.add("pipeline_job_failures_total", job.failures, *of)
        if job.lag_events is not None:
            into.add("pipeline_job_lag_events", job.lag_events, *of)


def _units(into: Families, look: Look) -> None:
    left = UNITS_MAX
    for group in look.groups.values():
        for unit in group.units[:left]:
            into.add("unit_lag_events", unit.events, group.group, unit.unit)
        left -= len(group.units)
        if left < 0:
            into.add("metrics_truncated", 1)
            return
    into.add("metrics_truncated", 0)


def rendered(
    look: Look | None, history: History, decided: Counter[tuple[str, str]], facts: NodeFacts
) -> bytes:
    """The text of one look."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LookCollector(look, history, decided, facts))
    return generate_latest(registry)
