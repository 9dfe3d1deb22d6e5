"""Requests of every kind to a node: none makes it fail, and what it refuses changes nothing.

In the suite for a moment; for as long as wanted with::

    python -m tests.node.fuzz --seconds 300
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from typing import Any
from urllib.parse import quote

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.groups import names, view
from headrace.node.access import tokens
from headrace.node.routes import PREFIX, table
from tests.node.support import Answer, RunningNode, running
from tests.support import wait_until

SHARED = "$share/audit/orders.>"
ODD = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["orders", SHARED, "orders/billing", "reader/report", "days", "earliest"]),
    st.sampled_from(["-1", "1e9", "\u202e", "%00", "<script>", "orders.>", "2999-01-01T00:00:00Z"]),
    st.integers(-5, 2**40).map(str),
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    ODD, st.integers(), st.none(), st.booleans(), st.lists(ODD, max_size=2)
)


class OddRequest(msgspec.Struct, frozen=True):
    """What is sent."""

    method: str
    path: str
    body: dict[str, Any] | None
    changes: bool


@st.composite
def requests(draw: st.DrawFn, *, dry: bool) -> OddRequest:
    """A request to some route; ``dry``: changes that can be are only previewed."""
    routes = [each for each in table(read_only=False) if each.media == "application/json"]
    route = draw(st.sampled_from(routes))
    path = PREFIX
    for part in route.parts:
        path += "/" + (quote(draw(ODD), safe="") if part.startswith("{") else part)
    fields = [each.name for each in msgspec.structs.fields(route.query)]
    asks: bool = draw(st.booleans())
    if fields and asks:
        path += f"?{draw(st.sampled_from(fields))}={quote(draw(ODD), safe='')}"
    body: dict[str, Any] | None = None
    if route.body is not None:
        known = [each.name for each in msgspec.structs.fields(route.body)]
        body = draw(st.dictionaries(st.sampled_from([*known, "more"]), VALUES, max_size=4))
        if dry and "dry_run" in known:
            body["dry_run"] = True
    return OddRequest(route.method, path, body, route.changes)


async def fill(node: RunningNode) -> None:
    """Something of everything, so that some requests make sense."""
    import headrace

    hr = node.hr
    await hr.create_stream("orders", ["orders.>"], segments=2)
    await hr.create_stream("days", ["days.>"], epochs=headrace.Epochs(publishers=("eu",)))
    await hr.groups.create_elastic(
        "orders", "billing", max_members=4, filter="orders.*", wildcards=[1], members=["m1"]
    )
    await hr.shared_groups.declare("audit", "orders.>", start="earliest")
    await hr.reader_groups.create("report", streams=["orders"])
    await hr.publish("orders.a", b'{"a": 1}', key="k")


def state(node: RunningNode) -> object:
    """What people made and how far groups are; not what a node writes down of who asked."""
    log = node.hr.log

    def read(tx: Any) -> object:
        every = names.all_names(tx)
        seen = view.views(view.picture_of_all(tx, every), every)
        units = [(one.group, [(u.unit, u.token, u.floor) for u in one.units]) for one in seen]
        members = [(one.group, [each.member for each in one.members]) for one in seen]
        return units, members

    streams = [(each.name, each.config, each.segments) for each in log.streams()]
    return streams, log.catalog.read(read, snapshot=True), tokens.listed(log.catalog)


def check(node: RunningNode, sent: OddRequest) -> Answer:
    """Send it: no failure, and nothing is changed by what is refused."""
    before = state(node) if sent.changes else None
    found = node.ask(sent.method, sent.path, sent.body)
    assert found.status < 500, (sent, found.body)
    if found.status >= 400:
        problem = found.json()
        assert problem["status"] == found.status, (sent, found.body)
        assert len(problem["detail"]) > 10, (sent, found.body)
        assert before is None or state(node) == before, (sent, found.body)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    wanted = parser.parse_args()
    statuses: Counter[tuple[str, int]] = Counter()
    with tempfile.TemporaryDirectory() as folder, running(f"{folder}/catalog") as node:
        node.do(fill(node))
        wait_until(lambda: node.get("/overview")["groups_count"] == 3, "the groups")

        @given(requests(dry=False))
        @settings(
            max_examples=200,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def round_of(sent: OddRequest) -> None:
            statuses[sent.method, check(node, sent).status] += 1

        ends_s = time.monotonic() + wanted.seconds
        while time.monotonic() < ends_s:
            round_of()
    for (method, status), count in sorted(statuses.items()):
        print(f"{method:7}{status:5}{count:9,}")
    print(f"{statuses.total():,} requests, none failed, none that was refused changed anything")


if __name__ == "__main__":
    main()
