"""Hostile command lines: whatever is typed, the answer is a sentence and never a traceback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import headrace.sync
from headrace.cli import run

NAMES = ("orders", "billing", "audit", "m1", "worker", "nobody")
HOSTILE = (
    "", " ", "-", "--", "-1", "0", "1", "7", "9" * 400, "9" * 5000, "1e400", "nan", "inf", "-inf",
    "0x10", "१", "a\0b", "\udcff\udce9", "\U0001f4a5", "x" * 5000, "/" * 5000, "../../etc/passwd",
    "a b", "a.b", "a.*", ">", "*", "orders.>", "$share/audit/orders.>", "$share//x", "$share/", "$",
    "{", "[" * 9_000, "{}", "null", "m1:0,1", "m1:", ":", "0:1,0:2", "0:1", "0,1", ",",
    "0-10", "5-1", "0x0-0x10", "--json", "15m", "-15m", "999999w", "9" * 30 + "w", "2013-13-45",
    "2013-07-04", "0001-01-01", "9999-12-31T23:59Z", "9999-12-31T23:59:59-23:59", "earliest",
    "latest", "now", "10GB", "1e9GB", "k=v", "=v", "k=", "%s%n", "\x1b[31m", "'", '"', "\n",
    "true", "on", "off", "postgresql://", "s3://", "file:///dev/null", "[/]", "[red]", "\\",
)  # fmt: skip

# How many names each command takes, and its options.  Those with a value are always given: a
# command needs them, or would wait or work for long.
COMMANDS: dict[str, tuple[int, str]] = {
    "stream create": (
        1,
        "--subjects=new.> --segments --partitions --key-tokens --retention --retention-age "
        "--retention-bytes --retention-events --keep-age --keep-bytes --keep-events "
        "--scale-events --scale-bytes --scale-factor --scale-min",
    ),
    "stream set": (1, "--retention --retention-age --scaling --scale-events --scale-factor"),
    "stream ls": (0, "--internal"),
    "stream info": (1, ""),
    "stream scale": (1, "--split --into --merge --seal --ranges"),
    "stream autoscale": (1, "--dry-run"),
    "stream trim": (1, "--before"),
    "stream compact": (1, "--target --min-batches --min-age --span --policy --dry-run"),
    "stream rm": (1, "--yes --force"),
    "publish": (
        2,
        "--key --header --lines --json-lines --file --stream --subject --value --timestamp --text",
    ),
    "read": (1, "--from --until --subject --segments --limit --skip-damaged"),
    "group static create": (2, "--max-members=2 --filter --members --mapping --start"),
    "group static ls": (1, ""),
    "group elastic create": (
        2,
        "--max-members=2 --filter=orders.* --wildcards --max-buffered --members --distribution "
        "--start",
    ),
    "group elastic info": (2, ""),
    "group static rm": (2, "--yes"),
    "group members add": (3, ""),
    "group mapping set": (4, ""),
    "group mapping unset": (2, "--members"),
    "group active": (2, ""),
    "group step-down": (3, ""),
    "group partitions": (3, ""),
    "group explain": (2, "--limit"),
    "group lag": (2, ""),
    "group join": (3, "--exec --limit --idle=0.01 --pin-ttl-ms --max-deliveries --concurrency"),
    "group shared declare": (2, "--start --balance --scale-for-members"),
    "group shared configure": (2, "--balance --lag-slack --stall-timeout --lease-ttl --heartbeat"),
    "group shared info": (2, ""),
    "group shared ls": (0, ""),
    "group shared explain": (2, "--limit"),
    "group shared rm": (2, "--force"),
    "subscribe": (1, "--session --start --limit --idle=0.01 --tls-cert --tls-key"),
    "session ls": (0, ""),
    "session info": (1, ""),
    "session rm": (1, "--force"),
    "store sweep": (0, "--older-than --dry-run"),
    "pipeline status": (0, ""),
    "sim": (1, "--seeds=0 --steps=5 --faults --replay --depth"),
    "nonsense": (1, "--nonsense"),
}
FLAGS = {"--json", "--yes", "--force", "--dry-run", "--lines", "--json-lines", "--text"}


def hostile(chance: random.Random) -> list[str]:
    """A command line that nobody would type."""
    command = chance.choice(list(COMMANDS))
    count, options = COMMANDS[command]
    words = command.split()
    for _ in range(max(0, count + chance.choice((-1, 0, 0, 0, 1)))):
        words.append(chance.choice(NAMES if chance.random() < 0.6 else HOSTILE))
    given = options.split()
    words += [option for option in given if "=" in option]
    for option in chance.sample(given, min(len(given), chance.randint(0, 2))):
        if "=" not in option:
            words += [option] if option in FLAGS else [option, chance.choice(HOSTILE)]
    if chance.random() < 0.3:
        words.append("--json")
    if chance.random() < 0.05:
        words += ["--store", chance.choice(HOSTILE)]
    return words


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "data"
    with headrace.sync.open(folder) as hr:
        hr.create_stream("orders", ["orders.>"], segments=2)
        hr.create_stream("audit", ["audit.>"], partitions=2)
        hr.groups.create_static("audit", "billing", max_members=2, members=["m1"])
        hr.publish("orders.eu", b"1", key="k")
    return folder


@pytest.mark.parametrize("seed", range(8))
def test_no_command_line_ends_in_a_traceback(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CATALOG", str(catalog))
    empty = open("/dev/null")  # noqa: SIM115
    monkeypatch.setattr("sys.stdin", empty)
    for _ in range(60):
        words = hostile(chance)
        try:
            status = run(words)
        except BaseException as error:
            raise AssertionError(f"headrace {words!r:.300}") from error
        assert status in (0, 1, 2), words
    empty.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["publish", "--file", "x" * 5000 + ".csv", "--subject", "orders.x"], "too long"),
        (["publish", "--json-lines", "x" * 5000], "too long"),
        (["read", "orders", "--catalog", "x" * 5000], "too long"),
        (["session", "ls", "--store", "a\0b"], "NUL"),
        (["publish", "--json-lines", "deep"], "line 1 is nested too deeply"),
        (["read", "orders", "--from", "9" * 30 + "w"], "not a place"),
        (["stream", "set", "orders", "--retention-bytes", "9" * 400], "not a size"),
    ],
)
def test_names_and_nesting_beyond_all_bounds_are_refused_in_a_sentence(
    catalog: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CATALOG", str(catalog))
    Path("deep").write_text('{"subject": "orders.x", "value": ' + "[" * 100_000 + "\n")
    assert run(words) in (1, 2)
    told = capsys.readouterr().err
    assert told.startswith("headrace: ")
    assert said in told
    assert len(told) < 1500
