"""The page of the shapes that ``--json`` prints, made from their types.

``python -m tests.json_page`` writes ``docs/json.md``.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import msgspec

from headrace.cli import session_shapes, stream_shapes
from headrace.cli import shapes as of_commands
from headrace.groups import shapes, status
from headrace.groups.operations import dead_letters, find_key, seek
from headrace.groups.readers import info

PAGE = Path(__file__).parents[1] / "docs" / "json.md"

HEAD = """\
# Shapes of JSON

What `--json` prints, for programs. This page is made from the
types (`python -m tests.json_page`), and a test compares the two.

One vocabulary: times are ISO 8601 and end in `_at`, counts of events end in `_events`, a `member`
has an `instance` and owns a `unit`.

| command | prints |
|---|---|
| `headrace group ls` | a list of `GroupView`, without their units |
| `headrace group info` | `GroupView` |
| `headrace group explain` | `ExplanationShape` |
| `headrace group lag` | `GroupLag`; without a name, a list of them without their units |
| `headrace group decisions` | a list of `DecisionShape` |
| `headrace group members` | a list of `GroupMember` |
| `headrace status` | `CatalogStatus` |
| `headrace stream create`, `set` | `StreamShape` |
| `headrace stream ls` | a list of `StreamShape` |
| `headrace stream info` | `ConsumedStream` |
| `headrace stream scale` | `ScaledShape` |
| `headrace stream autoscale` | a line of `ScaledShape` for each step |
| `headrace stream trim` | `TrimmedStream` |
| `headrace stream rm` | `DeletedStream` |
| `headrace session ls` | a list of `SessionShape` |
| `headrace session info` | `SessionShape` |
| `headrace session rm` | `RemovedSession` |
| `headrace pipeline status` | `PipelineShape` |
| `headrace pipeline --once` | a list of `JobShape` |
| `headrace group seek` | `Sought` |
| `headrace group dead put-back`, `discard` | `PutBack` |
| `headrace find` | `FoundKey` |
| `headrace reader info` | `ReaderGroupInfo` |
| `headrace reader lag` | `ReaderGroupLag` |
| `headrace reader explain` | `ReaderExplanationShape` |
"""


MODULES = (shapes, of_commands, status, stream_shapes, session_shapes, seek, dead_letters, find_key,
           info)  # fmt: skip
ONLY_PYTHON = {"GroupExplanation", "LetterReason", "ReaderExplanation"}
"""For programs in Python; another shape is their JSON."""


def page() -> str:
    """The page as it should be."""
    parts = [HEAD]
    for module in MODULES:
        for kind in kinds(module):
            parts.append(_described(kind))
    return "\n".join(parts)


def kinds(module: ModuleType) -> list[type[msgspec.Struct]]:
    """The public shapes that a module defines."""
    return [
        each
        for name, each in vars(module).items()
        if isinstance(each, type)
        and issubclass(each, msgspec.Struct)
        and each.__module__ == module.__name__
        and not name.startswith("_")
        and name not in ONLY_PYTHON
    ]


def _described(kind: type[msgspec.Struct]) -> str:
    notes = _notes(kind)
    lines = [f"## {kind.__name__}", "", inspect.getdoc(kind) or "", "", "| field | type | |"]
    lines.append("|---|---|---|")
    for field in msgspec.structs.fields(kind):
        about = " ".join(notes.get(field.name, "").replace("``", "`").split())
        lines.append(f"| `{field.encode_name}` | {_type_text(field.type)} | {about} |")
    return "\n".join([*lines, ""])


def _notes(kind: type) -> dict[str, str]:
    """The text below each field in the source."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        match before, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = text
    return found


def _type_text(hint: object) -> str:
    text = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    text = re.sub(r"(\w+\.)+", "", text)
    text = re.sub(r"tuple\[(\w+), \.\.\.\]", r"list of \1", text)
    words = {"str": "text", "int": "number", "float": "number", "bool": "true or false"}
    words |= {"datetime": "time", "None": "null"}
    text = re.sub(r"\w+", lambda word: words.get(word[0], word[0]), text)
    return text.replace(" | ", " or ")


if __name__ == "__main__":
    PAGE.write_text(page())
