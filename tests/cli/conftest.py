"""The command line, called in this process; real processes are for what needs them."""

from __future__ import annotations

import io
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import run
from tests import json_page


@dataclass(frozen=True)
class Result:
    """What a command left: its status and what it said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as the one JSON value that it must be."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """What it printed, as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def _loggers_stay_as_they_are() -> Iterator[None]:
    """Commands set levels for the process, which here is that of the tests."""
    loggers = [
        each
        for each in logging.Logger.manager.loggerDict.values()
        if isinstance(each, logging.Logger) and each.name.startswith("headrace")
    ]
    levels = [(each, each.level) for each in loggers]
    yield
    for each, level in levels:
        each.setLevel(level)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in an empty folder; ``stdin`` is what it finds on its input."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HEADRACE_CATALOG", raising=False)

    def call(*argv: str, stdin: bytes = b"") -> Result:
        given = tmp_path / "stdin"
        given.write_bytes(stdin)
        with given.open("rb") as raw, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(raw))
            status = run(argv)
        said = capsys.readouterr()
        if "--json" in argv and status in (0, 1) and said.out and "--help" not in argv:
            json_page.check_printed(argv, said.out)
        return Result(status, said.out, said.err)

    return call


@pytest.fixture(scope="session")
def orders_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog to copy: making one takes many syncs of the disk."""
    folder = tmp_path_factory.mktemp("orders") / "headrace-data"
    place = ("--catalog", str(folder))
    assert (
        run(["stream", "create", "orders", "--subjects", "orders.>", "--segments", "2", *place])
        == 0
    )
    return folder


@pytest.fixture
def orders(cli: Cli, orders_template: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A catalog with a stream ``orders`` of two segments."""
    capsys.readouterr()
    shutil.copytree(orders_template, "headrace-data")
    return cli
