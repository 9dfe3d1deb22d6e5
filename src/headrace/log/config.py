"""What a stream may be configured to: checked before it is stored."""

from __future__ import annotations

import msgspec

from headrace.catalog import streams
from headrace.catalog.streams import Epochs, Fixed, Stream, StreamConfig
from headrace.errors import InvalidConfigError, OtherEpochsError, StreamExistsError
from headrace.subjects import SUBJECT_TOKENS_MAX, check_name, parse_filter
from headrace.subjects.arguments import check_fields

SUBJECTS_MAX = 64
EPOCH_PUBLISHERS_MAX = 1024


def check_config(config: StreamConfig) -> StreamConfig:
    """The configuration in its plain form, or an error that says what is wrong."""
    if config.internal:
        raise InvalidConfigError("only groups make internal streams")
    if not config.subjects:
        raise InvalidConfigError("a stream needs at least one subject filter")
    if len(config.subjects) > SUBJECTS_MAX:
        raise InvalidConfigError(
            f"{len(config.subjects)} subject filters; {SUBJECTS_MAX} is the most"
        )
    subjects = tuple(dict.fromkeys(parse_filter(pattern) for pattern in config.subjects))
    for token in config.key_tokens:
        if not isinstance(token, int) or not 1 <= token <= SUBJECT_TOKENS_MAX:
            raise InvalidConfigError(
                f"key_tokens: {token!r} is not a token's place (1 to {SUBJECT_TOKENS_MAX})"
            )
    if config.epochs is not None:
        check_fields(config.epochs)
    try:
        # A round trip through JSON, which checks every bound declared on a field.
        checked = streams.decode_config(msgspec.json.encode(config))
    except (msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
        raise InvalidConfigError(f"stream configuration: {error}") from error
    if checked.epochs is not None:
        _check_epochs(checked.epochs)
    if checked.partitions and checked.scaling != Fixed():
        raise InvalidConfigError(
            "a stream with partitions keeps its segments; leave the scaling policy out"
        )
    return msgspec.structs.replace(checked, subjects=subjects)


def _check_epochs(epochs: Epochs) -> None:
    if len(epochs.publishers) > EPOCH_PUBLISHERS_MAX:
        raise InvalidConfigError(
            f"{len(epochs.publishers)} publishers are declared; {EPOCH_PUBLISHERS_MAX} is the most"
        )
    for place, name in enumerate(epochs.publishers):
        check_name(name, "publisher")
        if name in epochs.publishers[:place]:
            raise InvalidConfigError(f"publisher {name!r} is declared twice; name each once")
    if epochs.publishers and not epochs.stored:
        raise InvalidConfigError(
            "a stream that stores nothing waits for no declared publishers; leave them out"
        )


def initial_segments(config: StreamConfig, segments: int | None) -> int:
    """With how many segments a stream begins; ``segments`` is what was asked for, if anything."""
    if config.partitions:
        if segments not in (None, 1, config.partitions):
            raise InvalidConfigError(
                f"segments={segments}: a stream of {config.partitions} partitions has one "
                "segment for each; leave it out"
            )
        return config.partitions
    if segments is None:
        return 1
    if type(segments) is not int or not 1 <= segments <= streams.SEGMENTS_MAX:
        raise InvalidConfigError(f"segments={segments}: a stream has 1 to {streams.SEGMENTS_MAX}")
    return segments


def check_same(existing: Stream, config: StreamConfig, segments: int | None) -> None:
    """Raise if a stream is there in another form than somebody wants to create it."""
    if found := _differences(existing, config, segments):
        told = f"stream {existing.name!r} exists in another form: {'; '.join(found)}"
        if existing.config.epochs != config.epochs:
            raise OtherEpochsError(
                f"{told}; epochs are chosen when a stream is created: choose another name, or "
                "delete this one first"
            )
        raise StreamExistsError(f"{told}; choose another name, change it, or delete it first")


def _differences(existing: Stream, config: StreamConfig, segments: int | None) -> list[str]:
    """In what a stream differs from what somebody wants to create, in words.

    The segments that count are those it began with: it may have been scaled since.  Once one of
    them is gone for good, their number is not known any more, and anything will do.
    """
    found = []
    began = sum(not segment.predecessors for segment in existing.segments)
    whole = len(existing.segments) == existing.segments[-1].number + 1
    if segments not in (None, began) and whole and not existing.config.partitions:
        found.append(f"it was made with {began} segments and not {segments}")
    for name in StreamConfig.__struct_fields__:
        has, wanted = getattr(existing.config, name), getattr(config, name)
        if has != wanted:
            shown = (msgspec.json.encode(each).decode() for each in (has, wanted))
            found.append(f"{name.replace('_', ' ')}: {' and not '.join(shown)}")
    return found
