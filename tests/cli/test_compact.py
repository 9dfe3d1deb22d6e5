"""``headrace stream compact``, and what ``headrace pipeline`` says without Spark."""

from __future__ import annotations

import time

import pytest

from headrace.catalog import open_catalog
from headrace.spark import records
from headrace.spark.records import JobRecord, SupervisorRecord
from tests.cli.conftest import Cli

EAGER = ("--min-age", "0s", "--min-batches", "2")


@pytest.fixture
def filled(orders: Cli) -> Cli:
    for count in range(6):
        assert orders("publish", "orders.eu.7", f"event {count}", "--key", "k").status == 0
    return orders


def test_a_dry_run_says_what_would_be_done(filled: Cli) -> None:
    said = filled("stream", "compact", "orders", *EAGER, "--dry-run")
    assert (said.status, said.err) == (0, "")
    assert "would make 1 file of 6 batches with 6 events" in said.out
    assert filled("stream", "compact", "orders", *EAGER, "--dry-run", "--json").json["files"] == 1


def test_compaction_keeps_all_events(filled: Cli) -> None:
    before = filled("read", "orders", "--json").lines
    done = filled("stream", "compact", "orders", *EAGER, "--json")
    assert done.json["batches"] == 6
    assert filled("read", "orders", "--json").lines == before
    assert "nothing to compact" in filled("stream", "compact", "orders", *EAGER).out


def test_young_batches_are_left_alone_unless_asked(filled: Cli) -> None:
    assert filled("stream", "compact", "orders", "--json").json["files"] == 0


def test_a_policy_is_kept_changed_and_dropped(filled: Cli) -> None:
    on = filled("stream", "compact", "orders", "--policy", "on", *EAGER, "--target", "1MiB")
    assert "files of about 1.0 MB from 2 batches on, as soon as they were appended" in on.out
    more = filled("stream", "compact", "orders", "--policy", "on", "--min-age", "2h", "--json")
    assert more.json["policy"] == {
        "target_bytes": 1 << 20,
        "min_batches": 2,
        "min_age_s": 7200,
        "span_s": 86_400,
    }
    assert filled("stream", "compact", "orders", "--min-age", "0s", "--json").json["files"] == 1
    assert filled("stream", "compact", "orders", "--policy", "off", "--json").json["policy"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("orders", "--policy", "off", "--min-batches", "3"), "no settings"),
        (("orders", "--policy", "on", "--dry-run"), "--dry-run"),
        (("orders", "--min-batches", "1"), "--min-batches"),
        (("orders", "--target", "much"), "not a size"),
        (("orders", "--min-age", "soon"), "not a duration"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    filled: Cli, words: tuple[str, ...], says: str
) -> None:
    said = filled("stream", "compact", *words)
    assert said.status == 2
    assert says in said.err


def test_an_unknown_stream_is_named(orders: Cli) -> None:
    said = orders("stream", "compact", "nothing")
    assert said.status == 2
    assert "nothing" in said.err


# --- pipeline status -----------------------------------------------------------------------


def write_records(*jobs: JobRecord) -> None:
    catalog = open_catalog("headrace-data")
    lease = catalog.leases.acquire(records.LEASE, "somebody", 60_000)
    assert lease is not None
    own = SupervisorRecord(
        owner="somebody",
        host="mill",
        pid=77,
        master="local[2]",
        leads_since_us=0,
        updated_us=0,
    )
    records.write(catalog, lease.token, own, list(jobs), [])
    catalog.close()


def release() -> None:
    catalog = open_catalog("headrace-data")
    lease = catalog.leases.get(records.LEASE)
    assert lease is not None
    catalog.leases.release(lease)
    catalog.close()


def test_status_says_when_nobody_leads(orders: Cli) -> None:
    assert "nobody leads" in orders("pipeline", "status").out
    assert orders("pipeline", "status", "--json").json == {
        "led": False,
        "supervisor": None,
        "jobs": [],
    }


def test_status_shows_the_jobs_and_their_errors(orders: Cli) -> None:
    running = JobRecord(
        name="compaction/orders",
        kind="compaction",
        target="orders",
        state="running",
        since_us=0,
        events=1234,
        rate_per_s=56.7,
        lag_events=89,
    )
    failed = JobRecord(
        name="partition/orders.billing",
        kind="partition",
        target="orders.billing",
        state="waiting",
        since_us=0,
        failures=3,
        due_us=time.time_ns() // 1000 + 3_600_000_000,
        last_error="no such luck",
        last_error_us=0,
    )
    write_records(running, failed)
    said = orders("pipeline", "status").out
    assert "led by process 77 on mill" in said
    assert "1,234" in said
    assert "again in 3" in said
    assert "partition/orders.billing failed at 1970-01-01T00:00:00Z: no such luck" in said
    told = orders("pipeline", "status", "--json").json
    assert [job["state"] for job in told["jobs"]] == ["running", "waiting"]
    release()
    told = orders("pipeline", "status", "--json").json
    assert [job["state"] for job in told["jobs"]] == ["stopped", "stopped"], "nobody runs them"


def test_an_entry_that_makes_no_sense_is_named_and_the_others_are_shown(orders: Cli) -> None:
    catalog = open_catalog("headrace-data")
    catalog.entries.put(records.BUCKET, "job/x", b"{}")
    catalog.close()
    job = JobRecord(
        name="compaction/orders", kind="compaction", target="orders", state="running", since_us=0
    )
    write_records(job)
    said = orders("pipeline", "status")
    assert said.status == 0
    assert "job/x" in said.err
    assert "compaction/orders" in said.out


def test_a_cluster_cannot_share_a_folder(orders: Cli) -> None:
    said = orders("pipeline", "--master", "spark://somewhere:7077", "--once")
    assert said.status == 1
    assert "postgresql://" in said.err


def test_without_a_catalog_nothing_is_started(cli: Cli) -> None:
    said = cli("pipeline")
    assert said.status == 1
    assert "headrace-data" in said.err
