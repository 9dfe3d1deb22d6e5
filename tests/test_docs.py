"""What the documents say is so: examples run, commands and files exist, doctests hold."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.cli import app, arranged
from tests.support import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PACKAGE = Path(headrace.__file__).parent


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


def shell_lines() -> list[tuple[str, str]]:
    """(document, command) of every line that a reader is told to type."""
    return [
        (document.name, line.removeprefix("$ "))
        for document in DOCUMENTS
        for block in blocks(document, "console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


def headrace_commands() -> list[tuple[str, list[str]]]:
    """The words after ``headrace``, for every use of it in a line."""
    found = []
    for document, line in shell_lines():
        words = shlex.split(line, comments=True)
        for at, word in enumerate(words):
            if word.split("/")[-1] == "headrace" and (at == 0 or words[at - 1] == "|"):
                rest = words[at + 1 :]
                ends = [i for i, word in enumerate(rest) if word in ("|", "<", ">")]
                found.append((document, rest[: ends[0]] if ends else rest))
    return found


def test_the_readme_has_its_examples() -> None:
    readme = ROOT / "README.md"
    assert len(blocks(readme, "python")) == 4
    assert len(blocks(readme, "python")[0].strip().splitlines()) <= 10
    assert len(headrace_commands()) > 30


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(c, id=f"{d.name}-{i}")
        for d in DOCUMENTS
        for i, c in enumerate(blocks(d, "python"))
    ],
)
def test_python_examples_run(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() in ("[b'12 apples']", "2")


@pytest.mark.parametrize(("document", "words"), headrace_commands(), ids=lambda v: str(v)[:60])
def test_commands_that_are_shown_can_be_typed(document: str, words: list[str]) -> None:
    """Each is understood, options and all; it is not run."""
    command, _, _ = app.parse_args(arranged(words), exit_on_error=False, print_error=False)
    assert command.__module__.startswith("headrace.")


def test_make_targets_that_are_shown_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    shown = {line.split()[1] for _, line in shell_lines() if line.startswith("make ")}
    shown |= {
        name
        for document in DOCUMENTS
        for name in re.findall(r"`make ([a-z]+)`", document.read_text())
    }
    assert {"demo", "test"} <= shown
    for target in shown:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target} is not there"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_files_and_errors_that_are_named_exist(document: Path) -> None:
    text = document.read_text()
    for path in re.findall(r"`((?:src|tests|bench|docs)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:api|host|log|catalog|groups|cli)/[\w/]+\.py)`", text):
        assert (PACKAGE / path).exists(), path
    for name in re.findall(r"`(\w+Error)`", text):
        assert hasattr(headrace.errors, name), name


def modules_with_doctests() -> list[str]:
    return [
        found.name
        for found in pkgutil.walk_packages([str(PACKAGE)], "headrace.")
        if not found.name.endswith("__main__") and ">>>" in source_of(found.name)
    ] + ["headrace"]


def source_of(name: str) -> str:
    path = PACKAGE.joinpath(*name.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    # What is compiled has none.
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize("name", modules_with_doctests())
def test_doctests_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
