"""Numbers that may only fall: what is untidy in the source, counted.

A number that rose names what is new; one that fell is to be lowered here, so that it stays low.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.test_layers import LAYERS, PACKAGE, RANKS, part_of

FILE_LINES = 400
FILE_LINES_MAX = 500
FUNCTION_LINES = 50

SQL = re.compile(r"\b(SELECT\s.+\sFROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM)\s", re.DOTALL)

WORLD = {
    *("asyncio", "concurrent", "threading", "multiprocessing", "subprocess", "socket", "select"),
    *("time", "random", "secrets", "uuid", "os", "pathlib", "logging", "sqlite3", "psycopg"),
}
PURE = (
    *("headrace.errors", "headrace.subjects", "headrace.compiled", "headrace.log.order"),
    *("headrace.log.limits", "headrace.loading"),
    *("headrace.groups.delivery", "headrace.groups.progress"),
)
"""What a core may use of the package, beside cores."""


@cache
def sources(package: Path) -> list[tuple[str, str]]:
    """(path, text) of every module."""
    return [
        (file.relative_to(package).as_posix(), file.read_text())
        for file in sorted(package.rglob("*.py"))
    ]


@cache
def tree(text: str) -> ast.Module:
    """A module, parsed once for all checks."""
    return ast.parse(text)


def impure_cores(package: Path) -> list[str]:
    """Imports of a core that lead to I/O, clocks or randomness."""
    found = []
    for path, text in sources(package):
        if "core" not in path.split("/")[:-1] and not path.startswith("groups/delivery/"):
            continue
        for node in ast.walk(tree(text)):
            match node:
                case ast.Import(names=names):
                    targets = [alias.name for alias in names]
                case ast.ImportFrom(module=str(module), names=names, level=0):
                    targets = [f"{module}.{alias.name}" for alias in names]
                case ast.ImportFrom():
                    targets = ["(a relative import)"]
                case _:
                    continue
            found += [f"{path}:{node.lineno} {name}" for name in targets if not _is_pure(name)]
    return found


def _is_pure(name: str) -> bool:
    head = name.split(".")[0]
    if head != "headrace":
        return head not in WORLD and not head.startswith("(")
    return ".core." in f"{name}." or any(f"{name}.".startswith(f"{each}.") for each in PURE)


def sql_outside_the_catalog(package: Path) -> list[str]:
    """Statements that stand elsewhere than in ``catalog/``."""
    return [
        f"{path}:{node.lineno} {' '.join(node.value.split())[:60]}"
        for path, text in sources(package)
        if not path.startswith("catalog/")
        for node in ast.walk(tree(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.search(node.value)
    ]


def files_over(lines: int) -> Callable[[Path], list[str]]:
    def look(package: Path) -> list[str]:
        counts = {path: len(text.splitlines()) for path, text in sources(package)}
        return [f"{path} has {count} lines" for path, count in counts.items() if count > lines]

    return look


def long_functions(package: Path) -> list[str]:
    """Functions, from ``def`` to their last line."""
    return [
        f"{path}:{node.lineno} {node.name} has {length} lines"
        for path, text in sources(package)
        for node in ast.walk(tree(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and (length := node.end_lineno - node.lineno + 1) > FUNCTION_LINES
    ]


def class_names_used_twice(package: Path) -> list[str]:
    """Public classes and type aliases of one layer that have the name of another one."""
    homes: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for path, text in sources(package):
        rank = RANKS[part_of(package / path, package)]
        for node in tree(text).body:
            match node:
                case ast.ClassDef(name=name):
                    pass
                case ast.AnnAssign(target=ast.Name(id=name)):
                    pass
                case ast.Assign(targets=[ast.Name(id=name)]):
                    pass
                case _:
                    continue
            if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                homes[rank, name].append(path)
    return [
        f"{name}: {path}, and {paths[0]}"
        for (_, name), paths in sorted(homes.items())
        for path in paths[1:]
    ]


def types_first_used_in_a_call(package: Path) -> list[str]:
    """Decoding that names its type: msgspec crashes if two threads are the first to use a type.

    A decoder that is made with the module is safe.  Commands have one thread.
    """
    return [
        f"{path}:{node.lineno} {ast.unparse(node.func)}"
        for path, text in sources(package)
        if not path.startswith("cli/")
        for node in ast.walk(tree(text))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("msgspec.json.decode", "msgspec.msgpack.decode")
        and any(keyword.arg == "type" for keyword in node.keywords)
    ]


def second_writers_of_progress(package: Path) -> list[str]:
    """Calls that write rows of progress elsewhere than in the one store of them."""
    found = []
    for path, text in sources(package):
        if path in ("catalog/progress.py", "groups/progress/store.py"):
            continue
        parsed = tree(text)
        names = {
            alias.asname or alias.name
            for node in ast.walk(parsed)
            if isinstance(node, ast.ImportFrom) and node.module == "headrace.catalog"
            for alias in node.names
            if alias.name == "progress"
        }
        writing = {f"{name}.{verb}" for name in names for verb in ("put", "replace", "reset")}
        found += [
            f"{path}:{node.lineno} {ast.unparse(node.func)}"
            for node in ast.walk(parsed)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in writing
        ]
    return found


Check = Callable[[Path], list[str]]

NUMBERS: dict[str, tuple[Check, int]] = {
    "impure imports of cores": (impure_cores, 0),
    "SQL outside the catalog": (sql_outside_the_catalog, 0),
    f"files over {FILE_LINES} lines": (files_over(FILE_LINES), 15),
    f"files over {FILE_LINES_MAX} lines": (files_over(FILE_LINES_MAX), 0),
    f"functions over {FUNCTION_LINES} lines": (long_functions, 0),
    "class names that a layer has twice": (class_names_used_twice, 6),
    "writers of progress beside the store": (second_writers_of_progress, 0),
    # That of the node's requests, which are all read on one loop.
    "types that are first used in a call": (types_first_used_in_a_call, 1),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_what_is_untidy_only_becomes_less(what: str) -> None:
    check, number = NUMBERS[what]
    found = check(PACKAGE)
    listed = "\n  ".join(found)
    assert len(found) <= number, f"{what}: {len(found)}, and not more than {number}:\n  {listed}"
    assert len(found) == number, f"{what}: only {len(found)} are left; say so in {__file__}"


def test_what_is_untidy_is_found(tmp_path: Path) -> None:
    """The checks can fail."""
    core, folder = tmp_path / "groups" / "some" / "core", tmp_path / "log"
    core.mkdir(parents=True)
    folder.mkdir()
    (core / "a.py").write_text(
        "import time\nfrom headrace.catalog import Tx\nfrom headrace import errors\n"
        "from headrace.groups.other.core.b import C\nfrom headrace.log import order, read\n"
        "def f():\n    from asyncio import sleep\n    from . import b\nclass Twice: ...\n"
    )
    (tmp_path / "groups" / "d.py").write_text(
        "from headrace.catalog import Tx, progress as stored\n"
        "stored.put(tx)\nstored.of_group(tx)\nstored.reset(tx)\n"
    )
    (tmp_path / "groups" / "b.py").write_text(
        "Twice = int\nclass _Once: ...\nFLAG = 1\n"
        "msgspec.json.decode(b'1')\nmsgspec.json.decode(b'1', type=Twice)\n"
    )
    (folder / "c.py").write_text(
        "class Twice: ...\nclass _Once: ...\ndef f(tx):\n    '''Select what is from here.'''\n"
        "    tx.rows(f'SELECT a '\n'FROM {b}')\n" + "    pass\n" * 500
    )
    assert impure_cores(tmp_path) == [
        "groups/some/core/a.py:1 time",
        "groups/some/core/a.py:2 headrace.catalog.Tx",
        "groups/some/core/a.py:5 headrace.log.read",
        "groups/some/core/a.py:7 asyncio.sleep",
        "groups/some/core/a.py:8 (a relative import)",
    ]
    assert sql_outside_the_catalog(tmp_path) == ["log/c.py:5 SELECT a FROM {b}"]
    assert files_over(400)(tmp_path) == ["log/c.py has 506 lines"]
    assert files_over(506)(tmp_path) == []
    assert long_functions(tmp_path) == ["log/c.py:3 f has 504 lines"]
    assert class_names_used_twice(tmp_path) == ["Twice: groups/some/core/a.py, and groups/b.py"]
    assert types_first_used_in_a_call(tmp_path) == ["groups/b.py:5 msgspec.json.decode"]
    assert second_writers_of_progress(tmp_path) == [
        "groups/d.py:2 stored.put",
        "groups/d.py:4 stored.reset",
    ]
    assert len(LAYERS) > 5
