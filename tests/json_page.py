"""The page of the shapes that ``--json`` prints, made from their types.

``python -m tests.json_page`` writes ``docs/json.md``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from headrace.cli import done_shapes as done
from headrace.cli import epoch_shapes as epoch
from headrace.cli import group_shapes as group
from headrace.cli import records, session_shapes, shapes, stream_shapes
from headrace.cli import region_shapes as region
from headrace.cli import region_snapshot_shapes as region_snapshots
from headrace.groups import shapes as groups
from headrace.groups import status
from headrace.groups.operations import dead_letters, find_key, seek
from headrace.groups.readers import info as readers
from headrace.node.access import tokens

PAGE = Path(__file__).parents[1] / "docs" / "json.md"

HEAD = """\
# Shapes of JSON

What `--json` prints, for programs. This page is made from the
types (`python -m tests.json_page`), and a test compares the two with each other and with what the
commands print.

One vocabulary: times are ISO 8601 and end in `_at`, counts of events end in `_events`, a `member`
has an `instance` and owns a `unit`, and `group` is the name that every command takes (of
`headrace reader`, what comes after `reader/`). Durations say
their unit: `_ms`, `_s`, `_seconds`. Events alone have the names of their columns (`timestamp`), so
that a line of `read --json` can be published again. "Lines" are JSON values, one on each line.

Errors are one line of JSON on stderr: `error` (its class) and `message`. A publish that stopped on
the way adds `published_events`: so many before the one that was refused are in the log.

| command | prints |
|---|---|
"""

LINES = "lines of "
PRINTS: dict[str, tuple[Any, ...]] = {
    "bench": (list[done.BenchLine],),
    "stream create": (stream_shapes.StreamShape,),
    "stream set": (stream_shapes.StreamShape,),
    "stream ls": (list[stream_shapes.StreamShape],),
    "stream info": (stream_shapes.ConsumedStream,),
    "stream scale": (stream_shapes.ScaledShape,),
    "stream autoscale": (LINES, stream_shapes.ScaledShape),
    "stream compact": (done.CompactedStream, done.CompactionSet),
    "stream trim": (stream_shapes.TrimmedStream,),
    "stream rm": (done.Deleted,),
    "publish": (done.PublishedEvent, done.PublishedEvents),
    "read": (LINES, records.EventShape),
    "group ls": (list[groups.GroupView],),
    "group info": (groups.GroupView,),
    "group explain": (shapes.ExplanationShape,),
    "group lag": (groups.GroupLag, list[groups.GroupLag]),
    "group decisions": (list[shapes.DecisionShape],),
    "group members": (list[groups.GroupMember],),
    "group seek": (seek.Sought,),
    "group dead ls": (list[group.DeadLetter],),
    "group dead reasons": (list[group.DeathReason],),
    "group dead show": (group.DeadLetter,),
    "group dead put-back": (dead_letters.PutBack,),
    "group dead discard": (dead_letters.PutBack,),
    "group join": (LINES, records.DeliveredEvent),
    "group active": (group.ActiveMembers,),
    "group step-down": (group.SteppedDown,),
    "group partitions": (group.MemberPartitions,),
    "group members add": (group.PartitionedGroup,),
    "group members drop": (group.PartitionedGroup,),
    "group mapping set": (group.PartitionedGroup,),
    "group mapping unset": (group.PartitionedGroup,),
    "group static create": (group.PartitionedGroup,),
    "group static info": (group.PartitionedGroup,),
    "group static ls": (list[group.PartitionedGroup],),
    "group static rm": (done.Deleted,),
    "group elastic create": (group.PartitionedGroup,),
    "group elastic info": (group.PartitionedGroup,),
    "group elastic ls": (list[group.PartitionedGroup],),
    "group elastic rm": (done.Deleted,),
    "group elastic members": (list[groups.GroupMember],),
    "group elastic members add": (group.PartitionedGroup,),
    "group elastic members drop": (group.PartitionedGroup,),
    "group elastic mapping set": (group.PartitionedGroup,),
    "group elastic mapping unset": (group.PartitionedGroup,),
    "group shared declare": (group.DeclaredGroup,),
    "group shared configure": (group.DeclaredGroup,),
    "group shared ls": (list[group.SharedGroup],),
    "group shared info": (group.SharedGroup,),
    "group shared explain": (group.SharedExplanationShape,),
    "group shared rm": (done.Deleted,),
    "status": (status.CatalogStatus,),
    "find": (find_key.FoundKey,),
    "reader create": (done.CreatedReaderGroup,),
    "reader ls": (list[readers.ReaderGroupSummary],),
    "reader info": (readers.ReaderGroupInfo,),
    "reader lag": (readers.ReaderGroupLag,),
    "reader explain": (shapes.ReaderExplanationShape,),
    "reader configure": (readers.ReaderGroupInfo,),
    "reader read": (LINES, records.DeliveredEvent),
    "reader checkpoint": (done.TakenCheckpoint, done.CancelledCheckpoint),
    "reader cut": (done.TakenCut,),
    "reader reset": (done.ResetGroup,),
    "reader offline": (done.OfflineReader,),
    "reader streams add": (done.ReaderStreams,),
    "reader streams drop": (done.ReaderStreams,),
    "reader rm": (done.Deleted,),
    "epoch publish": (epoch.PublishedRows,),
    "epoch advance": (epoch.AdvancedPublisher,),
    "epoch close": (epoch.EndedPublisher,),
    "epoch read": (LINES, records.EventShape, epoch.CompleteEpoch),
    "epoch status": (epoch.EpochStreamShape,),
    "epoch explain": (epoch.EpochExplanation,),
    "epoch decisions": (list[shapes.DecisionShape],),
    "epoch subscriptions": (list[epoch.EpochSubscriptionShape],),
    "epoch rollback": (epoch.EndedPublisher,),
    "epoch release": (epoch.EndedPublisher,),
    "epoch abort": (epoch.EndedPublisher,),
    "epoch forget": (done.Deleted,),
    "region name": (region.RegionShape,),
    "region renew": (region.RegionShape,),
    "region link": (region.LinkedStream,),
    "region unlink": (region.UnlinkedStream,),
    "region pause": (region.RegionState,),
    "region resume": (region.RegionState,),
    "region rejoin": (region.RegionState,),
    "region group enable": (region.ReplicatedShape,),
    "region group disable": (region.ReplicatedShape,),
    "region switch": (region.SwitchShape,),
    "region synced": (region.SyncedShape,),
    "region fail-over": (region.FailOverShape,),
    "region promote": (region.PromotedStream,),
    "region snapshot now": (region_snapshots.TakenSnapshots,),
    "region snapshot list": (list[region_snapshots.ListedShape],),
    "region snapshot force": (region_snapshots.ForcedSnapshots,),
    "region remove": (region.RemovedRegion,),
    "region status": (region.RegionStatus,),
    "region check": (region.RegionCheck,),
    "region explain": (region.RegionGroup,),
    "subscribe": (LINES, records.DeliveredEvent),
    "session ls": (list[session_shapes.SessionShape],),
    "session info": (session_shapes.SessionShape,),
    "session rm": (done.Deleted,),
    "pipeline": (list[session_shapes.JobShape],),
    "pipeline status": (session_shapes.PipelineShape,),
    "store sweep": (done.SweptFiles,),
    "catalog migrate": (done.CatalogVersion,),
    "catalog mend": (done.Mended,),
    "token create": (tokens.MadeToken,),
    "token ls": (list[tokens.TokenLine],),
    "token rm": (done.Deleted,),
    "token link": (done.NodeLink,),
    "doctor": (done.Doctor,),
    "up": (done.EverythingUp,),
    "serve": (done.Serving,),
}
"""What each command prints: one of these, or lines of them."""

NOTES = {
    "group ls": "without their units",
    "group lag": "the list without a name, and without their units",
    "stream compact": "the second with `--policy`",
    "publish": "the second with `--lines`, `--json-lines` or `--file`",
    "read": "on stderr `SkippedBatch`, with `--skip-damaged`",
    "epoch read": "`CompleteEpoch` after the rows of each",
    "reader checkpoint": "the second with `--cancel`",
    "pipeline": "with `--once`",
}
OF_NO_SHAPE = {"demo", "sim", "region run", "top"}
"""They print what they measured, or nothing."""
BESIDE = (records.SkippedBatch,)


def page() -> str:
    """The page as it should be."""
    rows = [f"| `headrace {name}` | {_printed(name)} |\n" for name in PRINTS]
    return "\n".join([HEAD + "".join(rows), *map(_described, kinds())])


def _printed(name: str) -> str:
    types = [each for each in PRINTS[name] if each != LINES]
    told = " or ".join(
        f"a list of `{get_args(each)[0].__name__}`" if get_args(each) else f"`{each.__name__}`"
        for each in types
    )
    note = f", {NOTES[name]}" if name in NOTES else ""
    return f"{LINES if LINES in PRINTS[name] else ''}{told}{note}"


def kinds() -> list[type[msgspec.Struct]]:
    """Every shape that a command prints, after those that stand in it."""
    found: dict[type[msgspec.Struct], None] = {}
    for given in (*PRINTS.values(), BESIDE):
        for each in given:
            _collect(each, found)
    return list(found)


def _collect(hint: Any, found: dict[type[msgspec.Struct], None]) -> None:
    for inner in get_args(hint):
        _collect(inner, found)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in found:
        for field in msgspec.structs.fields(hint):
            _collect(field.type, found)
        found[hint] = None


def check_printed(argv: Sequence[str], out: str) -> str | None:
    """That a command printed what the page says; returns which it was."""
    from headrace.cli import app, arranged

    chain, _, _ = app.parse_commands(arranged(list(argv)))
    name = " ".join(chain)
    if name not in PRINTS:
        return None
    types = [each for each in PRINTS[name] if each != LINES]
    for text in out.splitlines() if LINES in PRINTS[name] else [out]:
        assert any(_fits(text, each) for each in types), f"{name} printed {text}"
    return name


def _fits(text: str, kind: Any) -> bool:
    try:
        read = msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        return False
    return _has_all(msgspec.to_builtins(read), msgspec.json.decode(text))


def _has_all(known: Any, printed: Any) -> bool:
    """Whether no name was printed that the type does not have."""
    if isinstance(printed, dict):
        return isinstance(known, dict) and all(
            (name in known or value is None) and (value is None or _has_all(known[name], value))
            for name, value in printed.items()
        )
    if isinstance(printed, list):
        return all(_has_all(one, other) for one, other in zip(known, printed, strict=True))
    return True


def _described(kind: type[msgspec.Struct]) -> str:
    notes = _notes(kind)
    lines = [f"## {kind.__name__}", "", inspect.getdoc(kind) or "", "", "| field | type | |"]
    lines.append("|---|---|---|")
    for field in msgspec.structs.fields(kind):
        about = " ".join(notes.get(field.name, "").replace("``", "`").split())
        lines.append(f"| `{field.encode_name}` | {_type_text(field.type)} | {about} |")
    return "\n".join([*lines, ""])


def _notes(kind: type) -> dict[str, str]:
    """The text below each field in the source, of those that it has from another shape, too."""
    above = kind.__base__
    inherited = _notes(above) if above not in (None, msgspec.Struct) else {}
    return inherited | _own_notes(kind)


def _own_notes(kind: type) -> dict[str, str]:
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
