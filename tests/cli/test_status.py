"""``headrace status``: how everything is, and what needs a person."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from headrace.catalog import Tx, entries, leases
from headrace.catalog.streams import StreamConfig
from headrace.cli import run
from headrace.cli.status import FINDINGS_SHOWN, GROUPS_SHOWN, STREAMS_SHOWN
from headrace.groups import chores
from headrace.groups.letter_names import stream_of
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.filling import PIPELINE, UP
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join
from headrace.groups.readers import admin as readers
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.shared.admin import Groups
from headrace.log.events import Event
from headrace.log.given import to_batch
from headrace.log.log import Log

NAME = GroupName("orders", "audit")
Said = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def said(catalog_url: str, log: Log, capsys: pytest.CaptureFixture[str]) -> Said:
    """Exit status, the JSON, and the screen of ``headrace status``."""
    log.create_stream("orders", StreamConfig(subjects=("orders.*",), partitions=2))
    admin.create_static(log, "orders", "audit", max_members=2, members=["m1", "m2"])
    running(log, "m1", "m2")

    def look(*options: str) -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        code = run(["--catalog", catalog_url, "--json", "status", *options])
        data = json.loads(capsys.readouterr().out)
        assert run(["--catalog", catalog_url, "status", *options]) == code
        return code, data, capsys.readouterr().out

    return look


def running(log: Log, *members: str, ttl_ms: int = 600_000) -> None:
    def pin(tx: Tx) -> None:
        for member in members:
            lease = leases.acquire(tx, NAME.pin(member), f"i-{member}", ttl_ms)
            assert lease is not None

    log.catalog.write(pin, locks=[leases.lock(NAME.pin(member)) for member in members])


def append(log: Log, count: int = 8) -> None:
    log.append("orders", [Event(subject=f"orders.{n}", value=b"x") for n in range(count)])


def ack_all(log: Log) -> None:
    heads = {s.id: Progress(s.head) for s in log.stream("orders").segments}
    log.catalog.write(lambda tx: join(tx, NAME.key, heads))


def ack(log: Log, floor: int) -> None:
    places = {s.id: Progress(floor) for s in log.stream("orders").segments}
    log.catalog.write(lambda tx: join(tx, NAME.key, places))


def words(data: dict[str, Any]) -> list[str]:
    return [each["finding"] for each in data["findings"] if each["needs_person"]]


def test_it_stays_one_screen_however_many_streams_groups_and_findings_there_are(
    said: Said, log: Log
) -> None:
    for number in range(STREAMS_SHOWN):
        log.create_stream(f"s{number}", StreamConfig(subjects=(f"s{number}.*",)))
    for number in range(GROUPS_SHOWN):
        admin.create_static(log, "orders", f"g{number}", max_members=2, members=["m1"])
    append(log)
    code, data, screen = said()
    assert (code, len(words(data))) == (1, GROUPS_SHOWN)
    assert "and 1 more: headrace stream ls" in screen
    assert "and 1 more: headrace group ls" in screen
    assert f"and {GROUPS_SHOWN - FINDINGS_SHOWN} more: headrace status --json" in screen
    assert screen.count("no instance of m1 runs") == FINDINGS_SHOWN


def test_all_is_well(said: Said, log: Log) -> None:
    append(log)
    ack_all(log)
    code, data, screen = said()
    assert (code, data["well"], words(data)) == (0, True, [])
    (stream,) = data["streams"]
    assert (stream["stream"], stream["retained_events"], stream["segments"]) == ("orders", 8, 2)
    assert stream["rate_events_per_s"] > 0
    assert stream["consumers"] == ["orders/audit"]
    (group,) = data["groups"]
    assert (group["group"], group["kind"]) == ("orders/audit", "static")
    assert (group["members_active"], group["members_wanted"]) == (2, 2)
    assert datetime.fromisoformat(data["seen_at"]).tzinfo is not None
    assert "all is well" in screen
    assert "2 of 2" in screen


def test_a_lost_member(said: Said, log: Log) -> None:
    def kill(tx: Tx) -> None:
        leases.set_expiry(tx, [(tx.now_us() - 1_000_000, NAME.pin("m2"))])

    log.catalog.write(kill, locks=[leases.lock(NAME.pin("m2"))])
    code, data, screen = said()
    assert (code, words(data)) == (1, ["member_lost"])
    assert "m2: instance i-m2 was lost at " in screen
    assert "partition 1 is not consumed" in screen
    assert "headrace group join orders audit m2" in screen
    (group,) = data["groups"]
    states = {each["member"]: each["state"] for each in group["members"]}
    assert states == {"m1": "active", "m2": "lost"}


def test_no_pipeline(said: Said, log: Log) -> None:
    admin.create_elastic(log, "orders", "billing", max_members=2, filter="orders.*", wildcards=[1])
    assert said()[0] == 0  # nothing waits
    append(log)
    ack_all(log)
    code, data, screen = said()
    assert code == 1
    assert "no_pipeline" in words(data)
    assert "no pipeline runs to fill it; start one with: headrace pipeline" in screen
    assert data["pipeline"]["wanted"]
    # ``headrace up`` fills the queue by itself.
    assert log.catalog.leases.acquire(UP, "127.0.0.1:8480, process 1", 60_000) is not None
    code, data, screen = said()
    assert "no_pipeline" not in words(data)
    assert "no pipeline runs to fill it" not in screen
    assert not data["pipeline"]["wanted"]


def test_an_hour_behind(said: Said, log: Log) -> None:
    now_us = log.catalog.read(lambda tx: tx.now_us())
    log.catalog.drive(lambda: now_us - 3_700_000_000)
    append(log)
    log.catalog.drive(lambda: now_us)
    code, data, screen = said()
    assert (code, words(data)) == (1, ["behind"])
    assert "it is 1 h 1 min behind: 8 events not acked" in screen
    assert "headrace group explain 'orders/audit'" in screen
    assert said("--behind", "2h")[0] == 0
    ack_all(log)
    assert said()[0] == 0


def test_a_damaged_batch(said: Said, log: Log) -> None:
    append(log)

    def damage(tx: Tx) -> None:
        tx.execute("UPDATE batches SET checksum = checksum + 1 WHERE start_offset = ?", (0,))

    log.catalog.write(damage)
    code, data, screen = said()
    assert code == 1
    assert set(words(data)) == {"damaged"}
    assert "is damaged: its checksum does not match" in screen


def test_events_lost_to_trimming(said: Said, log: Log) -> None:
    append(log)
    append(log)
    heads = {s.number: s.head for s in log.stream("orders").segments}
    log.trim("orders", heads)
    code, data, screen = said()
    assert (code, words(data)) == (1, ["lost_to_trimming"])
    assert "up to 16 events trimmed before it had acked them" in screen
    (group,) = data["groups"]
    assert group["lag"]["lost_to_trimming"] == 16


def test_a_shared_group_that_nobody_consumes_needs_a_person_once_events_wait(
    said: Said, log: Log
) -> None:
    Groups(log).declare("watch", "orders.>", start="now")
    assert said()[0] == 0
    append(log)
    ack_all(log)
    code, data, screen = said()
    assert (code, words(data)) == (1, ["no_members"])
    assert "headrace subscribe '$share/watch/orders.>'" in screen


def test_a_job_whose_record_is_broken_is_told_as_failing(said: Said, log: Log) -> None:
    log.catalog.write(
        lambda tx: entries.put(tx, PIPELINE, "job/orders.audit", b"\x00"),
        locks=[entries.lock(PIPELINE)],
    )
    code, data, _ = said()
    assert (code, data["pipeline"]["failing"]) == (0, 1)


def test_a_stream_that_cannot_be_read(said: Said, log: Log) -> None:
    append(log)

    def damage(tx: Tx) -> None:
        tx.execute("UPDATE batches SET checksum = checksum + 1 WHERE start_offset = ?", (0,))
        tx.execute("UPDATE streams SET config = ? WHERE name = ?", (b"{}", "orders"))

    ack(log, 1)
    log.catalog.write(damage)
    code, data, screen = said()
    assert code == 1
    assert "unreadable" in words(data)
    assert "stream 'orders' cannot be read" in screen


def test_bad_input(catalog_url: str, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    assert said()[0] == 0
    assert run(["--catalog", catalog_url, "status", "--behind", "soon"]) == 2
    assert "--behind" in capsys.readouterr().err


def test_it_says_when_each_chore_was_last_done(said: Said, log: Log) -> None:
    _, data, screen = said()
    assert [each["done_at"] for each in data["chores"]] == [None, None, None]
    assert "last done: retention never, scaling never, sweep never" in screen
    done = {chores.RETENTION: ("nothing to do", False), chores.SWEEP: ("the store is away", True)}
    chores.put_done(log.catalog, "box.1", done)
    _, data, screen = said()
    assert [(each["chore"], each["instance"]) for each in data["chores"]] == [
        ("retention", "box.1"),
        ("scaling", None),
        ("sweep", "box.1"),
    ]
    assert datetime.fromisoformat(data["chores"][0]["done_at"]).tzinfo is not None
    assert "scaling never, sweep" in screen
    assert "ago and failed: the store is away" in screen


def test_a_stream_names_its_consumers_and_their_lag(
    said: Said, log: Log, catalog_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    append(log, 8)
    said()
    Groups(log).declare("all", "orders.>", start="earliest")
    admin.create_elastic(
        log, "orders", "billing", max_members=2, filter="orders.*", wildcards=[1], members=["m"]
    )

    def info(*options: str) -> str:
        capsys.readouterr()
        assert run(["--catalog", catalog_url, *options, "stream", "info", "orders"]) == 0
        return capsys.readouterr().out

    found = {each["group"]: each["lag_events"] for each in json.loads(info("--json"))["consumers"]}
    assert found["orders/audit"] == found["orders/billing"] == 8
    assert "orders/billing" in info()
    ack_all(log)
    found = {each["group"]: each["lag_events"] for each in json.loads(info("--json"))["consumers"]}
    assert (found["orders/audit"], found["orders/billing"]) == (0, 8)


LOOKS = [
    "stream ls", "stream info orders", "group ls", "status", "group info audit",
    "group explain audit", "group lag audit", "group members audit", "group decisions audit",
    "session ls", "pipeline status", "reader ls", "reader info report", "reader lag report",
    "reader explain report", "group explain report",
    "group static ls", "group static info orders audit", "group active orders audit",
    "group partitions orders audit m1", "group elastic ls", "group shared ls",
    "group shared info all", "group shared explain all", "token ls", "region status",
    "group seek audit --to earliest --dry-run", "group seek all --to latest --dry-run",
    "group seek reader/report --to earliest --dry-run", "stream trim orders --before 0s --dry-run",
    "read orders", "read orders --json", "read orders --from 1h", "read orders --subject *.1",
    "find orders.1", "group dead ls audit", "group dead reasons audit", "group dead show audit 0",
    "group dead discard audit --all --dry-run", "epoch status days", "epoch explain days",
    "epoch decisions days", "epoch subscriptions",
    "reader reset report --dry-run", "reader cut report", "publish --help",
    "group dead put-back --help", "read --help", "find --help", "epoch --help", "region --help",
]  # fmt: skip
MADE = [
    "region name eu", "stream create days --subjects days.> --epochs int",
    "epoch publish days days.a x --time 1 --advance-to 2", "epoch read days --name sub --limit 1",
    "epoch publish days days.a x --time 2 --advance-to 3",
]  # fmt: skip
UNUSED = ("pandas", "pyspark", "obstore", "pyarrow", "numpy", "headrace.api", "headrace.host.host",
          "headrace.log.append", "headrace.log.read", "headrace.groups.consumer.consumer",
          "headrace.epochs.core.publisher", "headrace.regions.moving")  # fmt: skip
LOADED = """
import sys
from headrace.cli import run
from headrace.cli.status import FINDINGS_SHOWN, GROUPS_SHOWN, STREAMS_SHOWN
codes = [run(words.split()) for words in sys.argv[1:]]
print(codes, *sys.modules, file=sys.stderr)
"""


def loaded(*commands: str) -> tuple[list[int], list[str]]:
    """The exit status of commands, and the modules that they load in a process of their own."""
    given = [sys.executable, "-c", LOADED, *commands]
    done = subprocess.run(given, capture_output=True, text=True, timeout=120)
    codes, _, names = done.stderr.splitlines()[-1].partition("] ")
    return json.loads(f"{codes}]"), names.split()


def test_looking_loads_nothing_of_what_runs(
    said: Said, log: Log, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log)
    letters = stream_of(NAME.key)
    log.create_internal_stream(letters, 1)
    write = log.write_of()
    write.add(letters, to_batch([Event(subject="orders.1", value=b"x")]), segment=0, captured=True)
    log.commit(write)
    readers.create(log, "report", given=["orders"], start="earliest", end=None, filter=None,
                   config=GroupConfig())  # fmt: skip
    Groups(log).declare("all", "orders.>", start="earliest")
    monkeypatch.setenv("HEADRACE_CATALOG", catalog_url)
    for words in MADE:
        assert run(words.split()) == 0, words
    codes, names = loaded(*LOOKS)
    assert codes == [1 if look == "status" else 0 for look in LOOKS]
    assert not [name for name in UNUSED if name in names]
    if not catalog_url.startswith("postgres"):  # its driver loads asyncio
        assert "asyncio" not in names
    assert sum(name.startswith("headrace") for name in names) <= 310
    codes, names = loaded("epoch read days", "epoch read days --from 2 --json")
    assert codes == [0, 0]
    assert not [name for name in UNUSED if name in names and name != "numpy"]
    codes, names = loaded("group dead put-back audit --all --dry-run")
    assert codes == [0]
    unused = ("pandas", "pyspark", "pyarrow.parquet", "headrace.api", "headrace.host.host")
    assert not [name for name in unused if name in names]
