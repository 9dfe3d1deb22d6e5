"""Dependencies point one way: each layer imports only itself and what lies below it."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace

PACKAGE = Path(headrace.__file__).parent

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "compiled", "subjects", "loading"}),
    frozenset({"catalog", "store"}),
    frozenset({"log"}),
    frozenset({"host", "net"}),
    frozenset({"groups", "regions", "epochs"}),
    frozenset({"api"}),
    frozenset({"cli", "node", "spark", "sim", "testing", "__main__"}),
)
"""From the bottom up; modules of one layer may use each other.

``api`` is what stands in no folder: the package itself, and the modules it is made of.
"""

RANKS = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}


def part_of(file: Path, package: Path) -> str:
    """The part of the package that a file belongs to: its folder, or a module at the top."""
    parts = file.relative_to(package).with_suffix("").parts
    return parts[0] if len(parts) > 1 or parts[0] in RANKS else "api"


def imported_parts(source: str, module: str) -> list[tuple[int, str]]:
    """(line, part) of every import of our own package, at any depth of the module."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                targets = [alias.name for alias in names]
            case ast.ImportFrom(module=name, level=level, names=names):
                base = module.split(".")[: -level or None] if level else []
                prefix = ".".join([*base, *([name] if name else [])])
                targets = [f"{prefix}.{alias.name}" for alias in names]
            case ast.Call(
                func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name))]
            ):
                targets = [name]
            case _:
                continue
        for target in targets:
            head, _, rest = target.partition(".")
            if head == "headrace":
                part = rest.split(".")[0]
                found.append((node.lineno, part if part in RANKS else "api"))
    return found


def violations(package: Path) -> list[str]:
    found = []
    for file in sorted(package.rglob("*.py")):
        part = part_of(file, package)
        module = ".".join(["headrace", *file.relative_to(package).with_suffix("").parts])
        for line, other in imported_parts(file.read_text(), module):
            if RANKS[other] > RANKS[part]:
                found.append(f"{file.relative_to(package)}:{line} imports {other}")
    return found


def test_every_folder_of_the_package_has_a_layer() -> None:
    parts = {part_of(file, PACKAGE) for file in PACKAGE.rglob("*.py")}
    assert parts - RANKS.keys() == set()


def test_imports_point_downwards() -> None:
    assert violations(PACKAGE) == []


def test_the_order_of_segments_is_pure() -> None:
    """The cores of groups use it, and they know neither catalog nor log."""
    file = PACKAGE / "log" / "order.py"
    assert imported_parts(file.read_text(), "headrace.log.order") == []


def test_an_import_that_points_upwards_is_found(tmp_path: Path) -> None:
    """The check can fail: in functions, relative, under TYPE_CHECKING and by name."""
    (tmp_path / "log").mkdir()
    (tmp_path / "catalog").mkdir()
    (tmp_path / "log" / "ok.py").write_text(
        "from headrace.catalog import x\nimport headrace.errors"
    )
    (tmp_path / "log" / "bad.py").write_text(
        "def f():\n    from headrace.groups.shared import x\n"
        "if TYPE_CHECKING:\n    import headrace.api.client\n"
    )
    (tmp_path / "catalog" / "bad.py").write_text(
        "from ..log import read\nfrom .. import cli\nfrom headrace import open\n"
        "importlib.import_module('headrace.node')\nfrom . import base\n"
    )
    assert violations(tmp_path) == [
        "catalog/bad.py:1 imports log",
        "catalog/bad.py:2 imports cli",
        "catalog/bad.py:3 imports api",
        "catalog/bad.py:4 imports node",
        "log/bad.py:2 imports groups",
        "log/bad.py:4 imports api",
    ]
