"""Seek and dead letters at the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def jobs(cli: Cli) -> Cli:
    """A static group with four events, two of which its command refuses."""
    assert cli("stream", "create", "jobs", "--subjects", "jobs.>", "--partitions", "2").status == 0
    cli("group", "static", "create", "jobs", "work", "--max-members", "2", "--members", "m1")
    script = Path("work.sh")
    script.write_text(
        "#!/bin/sh\nread v\n[ $v -lt 2 ] && exit 0\necho no room for $v >&2\nexit 3\n"
    )
    script.chmod(0o755)
    for n in range(4):
        cli("publish", "jobs.a", str(n), "--key", str(n))
    done = cli("group", "join", "jobs", "work", "m1", "--exec", "./work.sh", "--max-deliveries",
               "1", "--idle", "1")  # fmt: skip
    assert done.status == 0
    assert "no room for 2" in done.err
    return cli


def test_letters_are_listed_shown_put_back_and_discarded(jobs: Cli) -> None:
    first, second = jobs("--json", "group", "dead", "ls", "jobs/work").json
    assert (first["reason"], first["attempts"], first["lives"]) == ("nacked", 1, 1)
    assert "no room for" in first["error"]
    assert first["died_at"]
    listed = jobs("group", "dead", "ls", "jobs/work").out
    assert "./work.sh exited with 3: no room for 2" in listed
    decided = jobs("group", "decisions", "work").out.splitlines()
    assert len([line for line in decided if "exited with 3: no room for" in line]) == 2
    assert all(line.startswith("20") for line in decided), decided
    shown = jobs("group", "dead", "show", "work", str(second["id"])).out
    assert "./work.sh exited with 3" in shown
    assert "no room for" in shown
    [reason] = jobs("--json", "group", "dead", "reasons", "work").json
    assert (reason["letters"], reason["error"]) == (2, "./work.sh exited with 3:")
    assert jobs("group", "shared", "declare", "audit", "jobs.>").status == 0
    asked = jobs("group", "dead", "put-back", "work", "--key", "2")
    assert (asked.status, asked.out) == (2, "")
    assert "$share/audit/jobs.> will see 1 event again, too" in asked.err
    done = jobs("group", "dead", "put-back", "work", "--key", "2", "--yes")
    assert "1 letter put back to their subjects" in done.out
    gone = jobs("group", "dead", "discard", "work", "--all", "--yes")
    assert "1 letter discarded" in gone.out
    assert "has no such dead letters" in jobs("group", "dead", "ls", "work").out
    again = jobs("group", "join", "jobs", "work", "m1", "--limit", "1", "--json").json
    assert (again["value"], again["key"]) == ("2", "2")


def test_a_group_is_sought(jobs: Cli) -> None:
    tried = jobs("group", "seek", "jobs/work", "--to", "earliest", "--dry-run")
    assert "4 events would come again, 0 would be skipped" in tried.out
    done = jobs("--json", "group", "seek", "work", "--to", "earliest").json
    assert (done["again_events"], done["dry_run"], done["exact"]) == (4, False, True)
    values = jobs("group", "join", "jobs", "work", "m1", "--limit", "4", "--json").lines
    assert sorted(line["value"] for line in values) == ["0", "1", "2", "3"]


BAD = [
    (["info", "nobody"], "jobs/work"),
    (["lag", "nobody"], "jobs/work"),
    (["members", "jobs/nobody"], "work"),
    (["info", "twin"], "$share/twin/jobs.>"),
    (["decisions", "work", "--limit", "-1"], "--limit -1: give 0 to"),
    (["explain", "work", "--limit", "-1"], "--limit -1: give 0 to"),
    (["seek", "twin", "--to", "latest"], "jobs/twin"),
    (["seek", "work", "--to", "0:0"], "it has 0: 1 to"),
    (["seek", "work", "--to", "2026-13-01"], "is not a place"),
    (["dead", "put-back", "$share/twin/jobs.>", "--all", "--yes"], "nothing to do"),
    (["seek", "nobody", "--to", "latest"], "jobs/work"),
    (["seek", "work", "--to", "soon"], "is not a place"),
    (["seek", "work", "--to", "9000-01-01"], "lies in the future"),
    (["seek", "work", "--to", "3"], "say in which segment: 0:3"),
    (["seek", "work", "--to", "0:99"], "by segment it has 0: 1 to"),
    (["seek", "work", "--to", "7:0"], "has no 7"),
    (["seek", "work", "--to", "0:1,0:2"], "given twice"),
    (["seek", "work", "--to", "0:1", "--units", "1"], "leave it out"),
    (["seek", "work", "--to", "latest", "--units", "9"], "has no 9"),
    (["dead", "ls", "work", "--limit", "-1"], "--limit -1: give 1 to"),
    (["dead", "ls", "work", "--since", "soon"], "is not a time"),
    (["dead", "show", "work", "99"], "no dead letter 99"),
    (["dead", "put-back", "work"], "say which letters"),
    (["dead", "put-back", "work", "--key", "nobody"], "nothing to do"),
    (["dead", "put-back", "work", "--ids", "99", "--yes"], "nothing to do"),
    (["dead", "put-back", "work", "--all", "--lives-max", "1"], "raise --lives-max"),
    (["dead", "discard", "work", "--all"], "needs a yes: add --yes"),
]


def test_bad_input_gets_one_line_and_changes_nothing(jobs: Cli) -> None:
    twin = ("group", "static", "create", "jobs", "twin", "--max-members", "2", "--members", "m")
    assert jobs(*twin).status == 0
    assert jobs("group", "shared", "declare", "twin", "jobs.>").status == 0
    assert jobs("stream", "trim", "jobs", "--before", "0:1", "--yes").status == 0
    before = jobs("--json", "group", "seek", "work", "--to", "latest", "--dry-run").json
    for argv, message in BAD:
        refused = jobs("group", *argv)
        assert (refused.status, refused.out) == (2, ""), argv
        assert message in refused.err
        assert refused.err.count("\n") == 1
    assert jobs("--json", "group", "seek", "work", "--to", "latest", "--dry-run").json == before
    assert len(jobs("--json", "group", "dead", "ls", "work").json) == 2
