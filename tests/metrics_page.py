"""The page of metrics and the dashboard, made from the list in the code.

``python -m tests.metrics_page`` writes ``docs/metrics.md`` and ``docs/grafana.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.node.metrics import METRICS

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "metrics.md"
DASHBOARD = DOCS / "grafana.json"
ALERTS = DOCS / "alerts.yml"

HEAD = """\
# Metrics

A node serves metrics for Prometheus at `/metrics`, to tokens without a scope of subjects:

```console
$ headrace token create prometheus --role view
```

```yaml
scrape_configs:
  - job_name: headrace
    authorization: {credentials_file: /etc/prometheus/headrace.token}
    static_configs: [{targets: ["127.0.0.1:8470"]}]
```

The text is made once for each look of the node and served from memory in between. Counters of
decisions count since the node began. Units have series only with `headrace serve
--metrics-per-unit`, 10,000 at most; `headrace_metrics_truncated` says whether some were left out.
[grafana.json](grafana.json) is a dashboard, [alerts.yml](alerts.yml) has alert rules. This page and
the dashboard are made from the code (`python -m tests.metrics_page`), and a test compares them.

| metric | kind | labels | |
|---|---|---|---|
"""

PANELS = (
    ("Lag in events", "headrace_group_lag_events", "{{group}}", "short"),
    ("Behind", "headrace_group_lag_seconds", "{{group}}", "s"),
    ("Acked", "headrace_group_acked_events_per_second", "{{group}}", "cps"),
    ("Appended", "rate(headrace_stream_appended_events_total[1m])", "{{stream}}", "cps"),
    ("Units that nobody owns", 'headrace_group_units{state="unowned"}', "{{group}}", "short"),
    ("Members", "headrace_group_members", "{{group}} {{state}}", "short"),
    ("Decisions", "rate(headrace_group_decisions_total[5m])", "{{group}} {{what}}", "cps"),
    ("Fenced", "increase(headrace_group_fenced_acks_total[5m])", "{{group}}", "short"),
    ("Dead letters", "headrace_group_dead_letters", "{{group}}", "short"),
    ("Findings", "headrace_group_findings", "{{group}} {{finding}}", "short"),
    ("Kept", "headrace_stream_bytes", "{{stream}}", "bytes"),
    ("Pipeline lag", "headrace_pipeline_job_lag_events", "{{job}}", "short"),
    ("Catalog", "headrace_catalog_bytes", "bytes", "bytes"),
    ("Look: CPU and age", "headrace_node_look_age_seconds", "age", "s"),
)


def page() -> str:
    """The page, as it has to be."""
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |"
        for each in METRICS
    ]
    return HEAD + "\n".join(rows) + "\n"


def dashboard() -> str:
    """The dashboard, as it has to be."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels: list[dict[str, Any]] = [
        {
            "id": at + 1,
            "title": title,
            "type": "timeseries",
            "datasource": source,
            "gridPos": {"x": at % 2 * 12, "y": at // 2 * 8, "w": 12, "h": 8},
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "targets": [{"refId": "A", "expr": expr, "legendFormat": legend}],
        }
        for at, (title, expr, legend, unit) in enumerate(PANELS)
    ]
    made = {
        "title": "Headrace",
        "uid": "headrace",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }
    return json.dumps(made, indent=2) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    DASHBOARD.write_text(dashboard())
