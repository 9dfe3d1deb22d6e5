"""Metrics for Prometheus: gauges of the last look, and counters since this node began.

The text is made once for each look, and served from memory until the next.  ``METRICS`` is the one
list: ``docs/metrics.md``, the dashboard and the alert rules are checked against it.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from prometheus_client.utils import floatToGoString

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


_LABELS = {each.name: tuple(sorted(each.labels)) for each in METRICS}
_SURE = 1e6
"""Below this ``repr`` writes a number as Prometheus wants it."""


class Families:
    """Families of samples in Prometheus's text, begun when first used.

    A page has ten thousand samples, so they are written at once, without an object for each; a
    test compares the text with that of prometheus-client.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, value: float, **labels: str) -> None:
        """A sample of a metric of the list."""
        assert len(labels) == len(_LABELS[f"headrace_{name}"]), name
        written = [f'{each}="{_escaped(labels[each])}"' for each in sorted(labels)]
        self.put(name, value, f"{{{','.join(written)}}}" if written else "")

    def put(self, name: str, value: float, labels: str) -> None:
        """A sample whose labels are written already, sorted and in braces."""
        lines = self._lines.get(name)
        if lines is None:
            about = _BY_NAME[f"headrace_{name}"]
            told = f"# HELP {about.name} {about.help}\n# TYPE {about.name} {about.kind}\n"
            lines = self._lines[name] = [told]
        if -_SURE < value < _SURE:
            number = repr(float(value))
        else:
            number = floatToGoString(value)  # type: ignore[no-untyped-call]
        lines.append(f"headrace_{name}{labels} {number}\n")

    def text(self) -> str:
        """All of it, family by family."""
        return "".join(["".join(lines) for lines in self._lines.values()])


def _escaped(label: str) -> str:
    if "\\" in label or '"' in label or "\n" in label:
        return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return label


def of_node(facts: NodeFacts) -> bytes:
    """What a node says of itself."""
    into = Families()
    into.add("build_info", 1, version=facts.version)
    into.add("node_look_age_seconds", round(facts.look_age_s, 3))
    into.add("node_listeners", facts.listeners)
    into.add("catalog_away", int(facts.away))
    return into.text().encode()


def of_look(
    look: Look, history: History, decided: Counter[tuple[str, str]], *, per_unit: bool
) -> bytes:
    """What a look saw."""
    into = Families()
    _itself(into, look)
    for group in look.groups.values():
        _group(into, look, history, group)
    for (name, what), count in decided.items():
        into.add("group_decisions_total", count, group=name, what=what)
        if what == "fenced":
            into.add("group_fenced_acks_total", count, group=name)
        elif what == "elected":
            into.add("leader_changes_total", count, group=name)
    _streams(into, look)
    _pipeline(into, look)
    if per_unit:
        _units(into, look)
    return into.text().encode()


def _itself(into: Families, look: Look) -> None:
    into.add("node_look_seconds", round(look.cpu_s, 6))
    into.add("node_looks_total", look.number)
    into.add("catalog_bytes", look.catalog_bytes)
    running = sum(each.node is not None for each in look.sessions)
    into.add("sessions", running, state="running")
    into.add("sessions", len(look.sessions) - running, state="not running")


def _group(into: Families, look: Look, history: History, group: GroupView) -> None:
    name, lag = group.group, group.lag
    read = group.stream or ",".join(group.streams) or group.filter or ""
    of, stream = f'group="{_escaped(name)}",kind="{group.kind}"', f'stream="{_escaped(read)}"'
    every = f"{{{of},{stream}}}"
    into.put("group_lag_events", lag.events, every)
    into.put("group_lag_bytes", lag.bytes, every)
    into.put("group_lag_seconds", round(lag.seconds, 3), every)
    into.put("group_dead_letters", look.letters.get(name, 0), every)
    into.put("group_lost_to_trimming_events", lag.lost_to_trimming, every)
    rate = history.rates.get((GROUP, name), 0.0)
    into.put("group_acked_events_per_second", round(rate, 3), every)
    for state, count in Counter([each.state for each in group.members]).items():
        into.put("group_members", count, f'{{{of},state="{_escaped(state)}",{stream}}}')
    for state, count in Counter([each.state for each in group.units]).items():
        into.put("group_units", count, f'{{{of},state="{_escaped(state)}",{stream}}}')
    for finding in dict.fromkeys([each.finding for each in group.findings]):
        into.put("group_findings", 1, f'{{finding="{_escaped(finding)}",{of},{stream}}}')


def _streams(into: Families, look: Look) -> None:
    for name, stream in look.streams.items():
        opened = len(stream.open_segments)
        sealed = len(stream.segments) - opened
        into.add("stream_events", sum(s.events for s in stream.segments), stream=name)
        into.add("stream_bytes", sum(s.retained_bytes for s in stream.segments), stream=name)
        into.add("stream_segments", opened, stream=name, state="open")
        into.add("stream_segments", sealed, stream=name, state="sealed")
        appended = sum(s.head for s in stream.segments)
        into.add("stream_appended_events_total", appended, stream=name)


def _pipeline(into: Families, look: Look) -> None:
    into.add("pipeline_led", int(look.pipeline.led))
    for job in look.pipeline.jobs:
        of = {"job": job.name, "kind": str(getattr(job.kind, "value", job.kind))}
        into.add("pipeline_job_rate", round(job.rate_per_s, 3), **of)
        into.add("pipeline_job_failures_total", job.failures, **of)
        if job.lag_events is not None:
            into.add("pipeline_job_lag_events", job.lag_events, **of)


def _units(into: Families, look: Look) -> None:
    left = UNITS_MAX
    for group in look.groups.values():
        for unit in group.units[:left]:
            into.add("unit_lag_events", unit.events, group=group.group, unit=unit.unit)
        left -= len(group.units)
        if left < 0:
            into.add("metrics_truncated", 1)
            return
    into.add("metrics_truncated", 0)


def rendered(
    look: Look | None, history: History, decided: Counter[tuple[str, str]], facts: NodeFacts
) -> bytes:
    """The text of a node and of one look."""
    seen = b"" if look is None else of_look(look, history, decided, per_unit=facts.per_unit)
    return of_node(facts) + seen
