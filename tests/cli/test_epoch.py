"""``headrace epoch``: publishing and reading whole epochs, and saying who holds them back."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli.failures import EXIT_INTERRUPTED, EXIT_USAGE
from tests.cli.conftest import Cli
from tests.cli.test_processes import started
from tests.support import PATIENCE_S, wait_until


@pytest.fixture
def days(cli: Cli) -> Cli:
    """A stream ``days`` that is published by epochs."""
    made = cli("stream", "create", "days", "--subjects", "days.>", "--epochs", "int")
    assert (made.status, made.err) == (0, "")
    return cli


def epochs_of(cli: Cli, *more: str) -> list[tuple[int, list[str]]]:
    """The epochs that a read shows, each with the values of its rows."""
    done = cli("epoch", "read", "days", "--json", *more)
    assert (done.status, done.err) == (0, "")
    found: list[tuple[int, list[str]]] = []
    values: list[str] = []
    for line in done.lines:
        if "complete" in line:
            assert line["epoch_events"] == len(values)
            found.append((line["complete"], values))
            values = []
        else:
            values.append(line["value"])
    assert values == []
    return found


def test_an_epoch_is_shown_when_it_is_complete(days: Cli) -> None:
    assert days("epoch", "publish", "days", "days.a", "one", "--time", "0").status == 0
    assert days("epoch", "publish", "days", "days.a", "two", "--time", "0").status == 0
    assert epochs_of(days) == []
    assert "epoch explain days" in days("epoch", "read", "days").err
    done = days("epoch", "advance", "days", "1", "--json")
    assert done.json == {"stream": "days", "publisher": "cli", "frontier": [1]}
    assert epochs_of(days) == [(0, ["one", "two"])]
    screen = days("epoch", "read", "days")
    assert screen.out.startswith("epoch 0: 2 rows\n")
    assert "one" in screen.out


def test_rows_of_a_file_and_an_advance(days: Cli) -> None:
    pq.write_table(pa.table({"who": ["x", "y"], "n": [1, 2]}), "day.parquet")
    words = ("--file", "day.parquet", "--subject", "days.{who}", "--value", "who")
    done = days("epoch", "publish", "days", "--time", "17", *words, "--advance-to", "18", "--json")
    assert done.json == {
        "stream": "days",
        "publisher": "cli",
        "published_events": 2,
        "frontier": [18],
    }
    lines = b'{"subject": "days.z", "value": "z", "epoch": [18]}\n'
    done = days("epoch", "publish", "days", "--json-lines", "--advance-to", "19", stdin=lines)
    assert done.status == 0, done.err
    assert epochs_of(days) == [(17, ["x", "y"]), (18, ["z"])]
    assert epochs_of(days, "--from", "18") == [(18, ["z"])]
    assert epochs_of(days, "--until", "18") == [(17, ["x", "y"])]
    assert epochs_of(days, "--limit", "1") == [(17, ["x", "y"])]
    token = days("epoch", "read", "days", "--until", "18", "--json").lines[-1]["token"]
    assert epochs_of(days, "--from", token) == [(18, ["z"])]


def test_a_named_read_goes_on_where_it_was(days: Cli) -> None:
    for time in range(2):
        words = ("--time", str(time), "--advance-to", str(time + 1))
        assert days("epoch", "publish", "days", "days.a", f"v{time}", *words).status == 0
        assert epochs_of(days, "--name", "report") == [(time, [f"v{time}"])]
    assert epochs_of(days, "--name", "report") == []


def test_a_file_that_breaks_off_leaves_nothing(days: Cli) -> None:
    lines = b'{"subject": "days.z", "value": "z"}\n' * 10 + b"no json\n"
    done = days("epoch", "publish", "days", "--json-lines", "--time", "0", stdin=lines)
    assert done.status == EXIT_USAGE
    assert "line 11 is not JSON" in done.err
    rows = pa.table({"subject": ["days.a", "days b"], "value": [b"1", b"2"]})
    pq.write_table(rows, "bad.parquet")
    done = days("epoch", "publish", "days", "--file", "bad.parquet", "--time", "0")
    assert done.status == EXIT_USAGE
    assert "row 2 of bad.parquet: " in done.err
    assert days("epoch", "advance", "days", "1").status == 0
    assert epochs_of(days) == []


def test_pairs_and_closing(cli: Cli) -> None:
    assert cli("stream", "create", "p", "--subjects", "p.>", "--epochs", "pair").status == 0
    assert cli("epoch", "publish", "p", "p.a", "v", "--time", "1,1").status == 0
    assert cli("epoch", "advance", "p", "2,0 0,2").status == 0
    assert [line.get("complete") for line in cli("epoch", "read", "p", "--json").lines] == [
        None,
        [1, 1],
    ]
    assert cli("epoch", "close", "p").status == 0
    refused = cli("epoch", "publish", "p", "p.a", "v", "--time", "3,3")
    assert refused.status == EXIT_USAGE
    assert "closed" in refused.err


BAD = [
    ("stream create x --subjects x.> --epochs 9", "1 to 8"),
    ("stream create x --subjects x.> --epochs day", "int, pair"),
    ("stream create x --subjects x.> --publishers eu", "goes with --epochs"),
    ("stream create x --subjects x.> --epochs int --publishers eu,eu", "twice"),
    ("stream create x --subjects x.> --epochs int --publishers no/name", "invalid publisher"),
    ("stream create plain --subjects plain.> --epochs int", "chosen when a stream is created"),
    ("stream create days --subjects days.>", "chosen when a stream is created"),
    ("publish days.a v", "headrace epoch publish"),
    ("epoch publish days days.a v", "--time 17"),
    ("epoch publish days days.a v --time -1", "not a time"),
    ("epoch publish days days.a v --time 1.5", "not a time"),
    ("epoch publish days days.a v --time 1,2", "it takes an integer"),
    ("epoch publish days days.a v --time 9223372036854775807", "2^63 - 2"),
    ("epoch publish days days.a v --time 1 --advance-to 1,1", "it takes an integer"),
    ("epoch publish days days.a v --time 4", "epoch 4"),
    ("epoch publish days days.a v --time 5 --advance-to 3", "3"),
    ("epoch publish days days.a v --time 5 --publisher no/name", "publisher"),
    ("epoch publish days other.a v --time 5", "other.a"),
    ("epoch publish days --time 5", "SUBJECT"),
    ("epoch publish days --time 5 --file none.parquet", "no file"),
    ("epoch publish days --file mixed.parquet", "row 2 of mixed.parquet: its epoch is [7, 8]"),
    ("epoch publish days --file null.parquet", "row 2 of null.parquet: its epoch is None"),
    ("epoch publish days --file late.parquet", "2 rows at epoch 3 and 1 more refused"),
    ("epoch publish days --file late.parquet", "the first is row 2"),
    ("epoch publish days --file many.parquet", "10001 different epochs"),
    ("epoch publish days --file two.parquet --time 7", "row 2 of two.parquet: its epoch is [8]"),
    ("epoch publish plain plain.a v --time 5", "has no epochs"),
    ("epoch publish none none.a v --time 5", "none"),
    ("epoch advance days 3", "3"),
    ("epoch advance days 9 --publisher nobody", "nobody"),
    ("epoch close days --publisher nobody", "nobody"),
    ("epoch read days --from 4 --until 2", "before --from"),
    ("epoch read days --from yesterday", "not a time"),
    ("epoch read days --from 1,2", "it takes an integer"),
    ("epoch read days --from abcdefghijklmnopqrstuvw", "not a resume token"),
    ("epoch read days --limit 0", "at least one"),
    ("epoch read days --name report --from now", "was made with start 'earliest', not 'now'"),
    ("epoch read days --until 9223372036854775807", "2^63 - 2"),
    ("epoch advance pairs 1", "a tuple of 2 integers"),
    ("epoch rollback days nobody", "nobody"),
    ("epoch release days nobody", "nobody"),
    ("epoch abort days nobody --reason because", "nobody"),
    ("epoch forget nobody", "no subscription 'nobody'"),
    ("epoch status plain", "has no epochs"),
    ("epoch explain plain", "has no epochs"),
    ("epoch read plain", "has no epochs"),
]


FILES: dict[str, list[list[int] | None]] = {
    "mixed.parquet": [[7], [7, 8]],
    "null.parquet": [[7], None],
    "late.parquet": [[9], [3], [4]],
    "many.parquet": [[number + 5] for number in range(10_001)],
    "two.parquet": [[7], [8]],
}


def test_bad_input_changes_nothing(days: Cli) -> None:
    for name, times in FILES.items():
        epoch = pa.array(times, pa.list_(pa.int64()))
        columns = {"subject": ["days.a"] * len(times), "value": [b"v"] * len(times)}
        pq.write_table(pa.table(columns | {"epoch": epoch}), name)
    assert days("stream", "create", "plain", "--subjects", "plain.>").status == 0
    made = days("stream", "create", "pairs", "--subjects", "pairs.>", "--epochs", "pair")
    assert made.status == 0
    assert days("epoch", "read", "days", "--name", "report", "--from", "earliest").status == 0
    assert days("epoch", "publish", "days", "days.a", "v", "--time", "0").status == 0
    assert days("epoch", "advance", "days", "5").status == 0
    before = _lines_of("days")
    for words, told in BAD:
        done = days(*words.split())
        assert done.status == EXIT_USAGE, (words, done)
        assert told in done.err, words
        assert _lines_of("days") == before, words
    assert epochs_of(days) == [(0, ["v"])]


def test_a_token_of_anything_else_is_refused_in_every_kind_of_read(days: Cli) -> None:
    def token(cli_words: tuple[str, ...] = (), stream: str = "days") -> str:
        for words in (("publish", stream, f"{stream}.a", "v", "--time", "0"),
                      ("advance", stream, "5")):  # fmt: skip
            assert days("epoch", *words, *cli_words).status == 0
        found: str = days("epoch", "read", stream, "--json", *cli_words).lines[-1]["token"]
        return found

    for name in ("other", "pairs"):
        kind = "pair" if name == "pairs" else "int"
        words = ("stream", "create", name, "--subjects", f"{name}.>", "--epochs", kind)
        assert days(*words).status == 0
    made = ("stream", "create", "days", "--subjects", "days.>", "--epochs", "int")
    assert days(*made, "--catalog", "elsewhere").status == 0
    of_deleted = token()
    assert days("stream", "rm", "days", "--yes").status == 0
    assert days(*made).status == 0
    own = token()
    wrong = (
        (token(stream="other"), "not a resume token of days: it is of other"),
        (token(("--catalog", "elsewhere")), "it is of another catalog"),
        (of_deleted, "of a stream of that name that was deleted"),
        (own[:-1], "not a resume token of days"),
        (own[:20], "not a resume token of days"),
        (own.swapcase(), "not a resume token of days"),
    )
    for given, told in wrong:
        for how in ((), ("--follow",), ("--name", "report"), ("--until", "9")):
            done = days("epoch", "read", "days", "--from", given, *how)
            assert (done.status, done.out) == (EXIT_USAGE, ""), (told, how, done)
            assert told in " ".join(done.err.split()), (how, done.err)
    assert days("epoch", "subscriptions", "--json").json == []
    assert epochs_of(days, "--from", own) == []
    done = days("epoch", "read", "pairs", "--from", own)
    assert (done.status, "not a resume token of pairs: it is of days" in done.err) == (
        EXIT_USAGE, True,
    )  # fmt: skip


def _lines_of(stream: str) -> int:
    from headrace.log.open import open_log

    log = open_log("headrace-data")
    try:
        return sum(segment.head for segment in log.stream(f"{stream}.epochs").segments)
    finally:
        log.catalog.close()


def _lines(process: subprocess.Popen[str], count: int) -> list[dict[str, object]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_a_publisher_killed_in_mid_epoch_is_not_seen(days: Cli) -> None:
    """Two terminals: nothing of the epoch is shown, and then it comes once, whole."""
    folder = Path.cwd()
    words = ["epoch", "publish", "days", "days.a", "--lines", "--time", "0", "--advance-to", "1"]
    words += ["--publisher", "eu", "--lease-ttl-ms", "500"]
    with started(folder, "epoch", "read", "days", "--follow", "--json") as reader:
        with started(folder, *words, stdin=subprocess.PIPE) as publisher:
            assert publisher.stdin is not None
            publisher.stdin.write("half\n")
            publisher.stdin.flush()
            wait_until(lambda: _rows_of("days") == 1, "the first row to be stored", 3 * PATIENCE_S)
            publisher.kill()
            publisher.wait(PATIENCE_S)
        assert epochs_of(days) == []
        wait_until(lambda: _state_of(days, "eu") == "lost", "its lease to run out")
        told = days("epoch", "explain", "days").out
        assert told.startswith("frontier 0 since ")
        assert "held back by eu (0), whose lease ran out" in told
        assert "headrace epoch rollback days eu" in " ".join(told.split())
        again = days(*words, stdin=b"half\nwhole\n")
        assert again.status == 0, again.err
        assert "1 row of it in unfinished epochs (0) was taken back" in again.err
        *rows, end = _lines(reader, 3)
        assert [row["value"] for row in rows] == ["half", "whole"]
        assert (end["complete"], end["epoch_events"]) == (0, 2)
        reader.send_signal(signal.SIGINT)
        rest, said = reader.communicate(timeout=PATIENCE_S)
        assert (reader.returncode, rest, said) == (EXIT_INTERRUPTED, "", "")


def test_a_stream_that_stores_nothing_goes_from_terminal_to_terminal(days: Cli) -> None:
    folder = Path.cwd()
    words = ["--subjects", "ticks.>", "--epochs", "int", "--live"]
    assert days("stream", "create", "ticks", *words).status == 0
    with started(folder, "epoch", "read", "ticks", "--json") as reader:
        sending = ["epoch", "publish", "ticks", "ticks.a", "--lines", "--time", "3"]
        sent = days(*sending, "--listeners", "1", stdin=b"one\ntwo\n")
        assert sent.status == 0, sent.err
        assert "2 rows in stream ticks" in sent.out
        *rows, end = _lines(reader, 3)
        assert [row["value"] for row in rows] == ["one", "two"]
        assert end == {"complete": 3, "epoch_events": 2}
        assert reader.wait(3 * PATIENCE_S) == 0  # the only publisher has closed
    for bad in (
        ("epoch", "read", "ticks", "--from", "0"),
        ("epoch", "read", "ticks", "--name", "report"),
        ("epoch", "publish", "ticks", "ticks.a", "x", "--time", "1,2"),
        ("epoch", "status", "ticks"),
        ("epoch", "advance", "ticks", "4"),
        ("stream", "create", "more", "--subjects", "more.>", "--live"),
    ):
        refused = days(*bad)
        assert refused.status == 2, (bad, refused)


def _state_of(cli: Cli, publisher: str) -> str:
    found = cli("epoch", "status", "days", "--json").json["publishers"]
    return str(next(one["state"] for one in found if one["publisher"] == publisher))


def test_status_tells_what_is_open_and_who_is_behind(days: Cli) -> None:
    assert "no publisher has come yet" in days("epoch", "explain", "days").out
    for name, time in (("eu", "0"), ("us", "0"), ("us", "1")):
        words = ("--time", time, "--publisher", name)
        assert days("epoch", "publish", "days", "days.a", name, *words).status == 0
    assert days("epoch", "advance", "days", "2", "--publisher", "us").status == 0
    assert epochs_of(days, "--name", "report") == []
    found = days("epoch", "status", "days", "--json").json
    assert (found["frontier"], found["readable_from"], found["upper"]) == ([0], [0], [1])
    assert [(one["epoch"], one["open_events"]) for one in found["open"]] == [(0, 2), (1, 1)]
    states = {one["publisher"]: (one["state"], one["holds_back"]) for one in found["publishers"]}
    assert states == {"eu": ("left", True), "us": ("left", False)}
    assert [one["lag_epochs"] for one in found["subscriptions"]] == [0]

    assert days("epoch", "rollback", "days", "eu").status == 0
    found = days("epoch", "status", "days", "--json").json
    assert (found["frontier"], found["open"]) == ([2], [])
    (behind,) = found["subscriptions"]
    assert (behind["subscription"], behind["lag_epochs"], behind["lag_events"]) == ("report", 2, 2)
    assert "2 complete epochs (2 rows) not acked" in days("epoch", "explain", "days").out
    assert "report" in days("epoch", "subscriptions").out
    assert epochs_of(days, "--name", "report") == [(0, ["us"]), (1, ["us"])]
    (caught_up,) = days("epoch", "status", "days", "--json").json["subscriptions"]
    assert caught_up["lag_epochs"] == 0
    assert days("epoch", "forget", "report").status == 0
    assert days("epoch", "forget", "report").status == EXIT_USAGE
    assert days("epoch", "subscriptions", "--json").json == []


def test_releasing_and_aborting(days: Cli) -> None:
    assert days("epoch", "publish", "days", "days.a", "v", "--time", "0").status == 0
    words = ("--time", "3", "--publisher", "eu", "--advance-to", "3")
    assert days("epoch", "publish", "days", "days.a", "w", *words).status == 0
    assert days("epoch", "release", "days", "cli").status == 0
    assert epochs_of(days) == [(0, ["v"])]
    assert days("epoch", "abort", "days", "eu", "--reason", " ").status == EXIT_USAGE
    assert days("epoch", "abort", "days", "eu", "--reason", "broken").status == 0
    done = days("epoch", "read", "days")
    assert (done.status, "broken" in done.err) == (1, True)
    assert "is aborted: broken" in days("epoch", "explain", "days").out
    assert days("epoch", "rollback", "days", "nobody").status == EXIT_USAGE


def _rows_of(stream: str) -> int:
    from headrace.log.open import open_log

    log = open_log("headrace-data")
    try:
        return sum(segment.head for segment in log.stream(stream).segments)
    finally:
        log.catalog.close()
