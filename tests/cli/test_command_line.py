"""What all commands share: help, globals, errors, exit codes and quick starts."""

from __future__ import annotations

import importlib
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cyclopts import App

from headrace import __version__
from headrace.cli import app
from headrace.cli.failures import without_passwords
from tests.cli.conftest import Cli


def commands(of: App = app, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command that does something, by its words."""
    found = []
    for name in of:
        if not name.startswith("-"):
            below = commands(of[name], (*path, name))
            found += below or [(*path, name)]
    return found


def test_the_commands_of_the_design_are_there() -> None:
    stream = {"create", "ls", "info", "scale", "autoscale", "trim", "set", "rm"}
    assert {("stream", name) for name in stream} <= set(commands())
    assert {("publish",), ("read",), ("demo",), ("sim",), ("store", "sweep")} <= set(commands())


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_s_help_shows_an_example_and_the_shared_options(
    cli: Cli, words: tuple[str, ...]
) -> None:
    try:
        shown = cli(*words, "--help")
    except SystemError as error:
        # Seen once on CPython 3.11, from ast.parse, while servers of other tests ran beside it.
        if "recursion depth mismatch" not in str(error):
            raise
        shown = cli(*words, "--help")
    assert shown.status == 0
    assert f"headrace {words[0]}" in shown.out.split("Usage:", 1)[1].split("\n", 1)[1]
    for option in ("--catalog", "--store", "--json"):
        assert option in shown.out
    assert list(Path().iterdir()) == []


def test_the_version_is_told(cli: Cli) -> None:
    assert cli("--version").out == f"headrace {__version__}\n"


def test_no_command_shows_the_help(cli: Cli) -> None:
    for argv in ([], ["--json"], ["--catalog", "x"], ["--help"]):
        shown = cli(*argv)
        assert shown.status == 0
        assert "publish" in shown.out
        assert "HEADRACE_CATALOG" in shown.out


@pytest.mark.parametrize("option", ["--catalog", "--store", "--store-option"])
def test_an_option_without_its_value_is_refused(cli: Cli, option: str) -> None:
    refused = cli(option)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err == f"headrace: {option} needs a value\n"
    assert cli("stream", "ls", option).status == 2
    assert cli("--store-option", "no-value", "stream", "create", "a", "--subjects=a").status == 2


def test_the_catalog_comes_from_the_option_else_the_environment_else_here(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ("stream", "create", "orders", "--subjects", "orders.>")
    assert cli(*create).status == 0
    monkeypatch.setenv("HEADRACE_CATALOG", "by-variable")
    assert cli(*create).status == 0
    assert cli("--catalog", "by-option", *create).status == 0
    assert cli(*create, "--catalog", "after").status == 0
    made = {path.name for path in Path().iterdir()}
    assert made == {"headrace-data", "by-variable", "by-option", "after"}


@pytest.mark.parametrize(
    "argv",
    [
        ["stream", "ls"],
        ["stream", "info", "orders"],
        ["stream", "set", "orders", "--retention-age", "1d"],
        ["stream", "scale", "orders", "--split", "0"],
        ["stream", "autoscale", "--all"],
        ["stream", "trim", "orders"],
        ["stream", "rm", "orders", "--yes"],
        ["publish", "orders.n", "x"],
        ["publish", "orders.n", "--lines"],
        ["publish", "--json-lines"],
        ["read", "orders"],
        ["store", "sweep"],
    ],
    ids=" ".join,
)
def test_a_mistyped_catalog_is_an_error_and_makes_nothing(cli: Cli, argv: list[str]) -> None:
    refused = cli("--catalog", "typo", *argv)
    assert (refused.status, refused.out) == (1, "")
    assert "typo" in refused.err
    assert "headrace stream create" in refused.err
    assert list(Path().iterdir()) == []


def test_an_unknown_scheme_and_a_foreign_folder_are_refused(cli: Cli) -> None:
    assert cli("--catalog", "mysql://db/x", "stream", "ls").status == 2
    Path("photos").mkdir()
    Path("photos/cat.jpg").touch()
    refused = cli("--catalog", "photos", "stream", "create", "a", "--subjects", "a")
    assert refused.status == 1
    assert [path.name for path in Path("photos").iterdir()] == ["cat.jpg"]


def test_a_catalog_that_cannot_be_migrated_is_an_error_in_a_sentence(cli: Cli) -> None:
    assert cli("stream", "create", "s", "--subjects", "s.>").status == 0
    with closing(sqlite3.connect("headrace-data/headrace.db")) as database:
        database.execute("UPDATE meta SET value = '3' WHERE key = 'schema_version'")
        database.commit()
    found = cli("stream", "ls")
    assert found.status == 1
    assert "cannot be brought to version" in found.err


def test_a_store_can_be_chosen_once(cli: Cli) -> None:
    create = ("stream", "create", "orders", "--subjects", "orders.>")
    assert cli("--store", "files", *create).status == 0
    assert Path("files").is_dir()
    assert cli("stream", "ls", "--store", "files").status == 0
    other = cli("--store", "elsewhere", "stream", "ls")
    assert other.status == 1
    assert "files" in other.err


def test_errors_for_programs_are_json(orders: Cli) -> None:
    for argv in (["stream", "info", "nope"], ["stream", "info"], ["read", "orders", "--limit=0"]):
        refused = orders(*argv, "--json")
        assert refused.out == ""
        told = json.loads(refused.err)
        assert told["error"].endswith("Error")
        assert told["message"]


def test_a_password_is_never_printed(cli: Cli) -> None:
    for argv in ([], ["--json"]):
        url = "postgresql://ann:hunter2@127.0.0.1:1/app?connect_timeout=2"
        refused = cli("--catalog", url, "stream", "ls", *argv)
        assert refused.status == 1
        assert "hunter2" not in refused.err + refused.out
        assert "127.0.0.1" in refused.err
    assert without_passwords("a://u:p@ss@h b://u:q@h") == "a://u:***@h b://u:***@h"


def test_postgresql_serves_the_same_commands(cli: Cli, postgres_url: str) -> None:
    place = ("--catalog", postgres_url)
    refused = cli(*place, "stream", "ls")
    assert refused.status == 1
    assert cli(*place, "stream", "create", "orders", "--subjects", "orders.>").status == 0
    assert cli(*place, "publish", "orders.n", "--lines", stdin=b"1\n2\n").status == 0
    assert [line["value"] for line in cli(*place, "read", "orders", "--json").lines] == ["1", "2"]
    assert cli(*place, "--json", "stream", "rm", "orders", "--yes").status == 0


def test_the_help_loads_no_arrow() -> None:
    """Which is what makes it quick."""
    code = (
        "import sys; from headrace.cli import run; run(['--help']); "
        "sys.exit(any(name in sys.modules for name in ('pyarrow', 'obstore', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_it_ends_at_once_and_yet_calls_what_was_registered_meanwhile() -> None:
    code = (
        "import atexit, sys, headrace.cli as cli\n"
        "run = cli.run\n"
        "cli.run = lambda given: (atexit.register(print, 'called'), run(given))[1]\n"
        "class Torn:\n"
        "    def __del__(self): print('taken apart')\n"
        "torn = Torn()\n"
        "cli.main()\n"
    )
    given = [sys.executable, "-c", code, "stream", "ls", "--nonsense"]
    done = subprocess.run(given, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "called\n")
    assert "--nonsense" in done.stderr


def test_every_public_name_can_be_loaded() -> None:
    package = importlib.import_module("headrace")
    other = {"Checkpoint": "GroupCheckpoint"}  # api/places.py names it for programs
    for name in package.__all__:
        assert getattr(package, name).__name__ == other.get(name, name)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018
