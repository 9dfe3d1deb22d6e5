"""Tokens and frames: what is written can be read, and nothing else is taken for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.epochs import (
    INTEGERS,
    PAIRS,
    Aborted,
    Antichain,
    Data,
    FrontierUpdate,
    Heartbeat,
    Message,
    ResumeToken,
    Skip,
    Snapshot,
    Time,
    TimeShape,
)
from headrace.epochs.core.heartbeat import QuietLinks
from headrace.epochs.core.token import TOKEN_CHARS_MAX
from headrace.epochs.core.wire import HEAD_BYTES_MAX, DataHead, decode_head, encode, with_payload
from headrace.errors import EpochMessageError, InvalidConfigError, InvalidTokenError
from tests.epochs.core.support import SHAPES, shape_and_times, times

OF = ("c", (("orders", "7"),))


@settings(deadline=None)
@given(shape_and_times(), st.text(max_size=20))
def test_a_token_survives(case: tuple[TimeShape, list[Time]], stream: str) -> None:
    shape, given_times = case
    of = ("catalog", ((stream, "7"), (stream + "+", "8")))
    token = ResumeToken(*of, shape, Antichain.minimal(shape, given_times).frontier)
    assert ResumeToken.decode(token.encode(), *of, shape) == token


@settings(deadline=None)
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.hex()))
def test_other_texts_are_no_tokens(text: str) -> None:
    with pytest.raises(InvalidTokenError):
        ResumeToken.decode(text, *OF, INTEGERS)


def test_no_token_begins_with_a_dash_and_old_ones_that_do_are_still_read() -> None:
    marked = 0
    for time in range(1000):
        token = ResumeToken(*OF, INTEGERS, (time,))
        text = token.encode()
        assert not text.startswith("-")
        marked += text.startswith(".")
        for given_text in (text, text.removeprefix(".")):
            assert ResumeToken.decode(given_text, *OF, INTEGERS) == token
    assert marked > 0


def test_a_token_is_bound_to_its_stream_and_shape_and_is_checked() -> None:
    token = ResumeToken(*OF, PAIRS, ((0, 1),)).encode()
    assert ResumeToken.decode(token, *OF, PAIRS).frontier == ((0, 1),)
    for catalog, streams, shape, why in (
        ("other", OF[1], PAIRS, "of another catalog"),
        ("c", (("other", "7"),), PAIRS, "it is of orders"),
        ("c", (("orders", "7"), ("paid", "8")), PAIRS, "it is of orders"),
        ("c", (("orders", "9"),), PAIRS, "of a stream of that name that was deleted"),
        ("c", OF[1], INTEGERS, "its times are each a tuple of 2 integers"),
    ):
        with pytest.raises(InvalidTokenError, match=why):
            ResumeToken.decode(token, catalog, streams, shape)
    for place in range(len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(InvalidTokenError):
            ResumeToken.decode(changed, *OF, PAIRS)
    for bad in (
        ResumeToken(*OF, PAIRS, ((1, 1), (0, 0))),
        ResumeToken(*OF, PAIRS, (3,)),
        ResumeToken(*OF, PAIRS, (), version=1),
    ):
        with pytest.raises(InvalidTokenError):
            ResumeToken.decode(bad.encode(), *OF, PAIRS)
    with pytest.raises(InvalidTokenError, match="too long"):
        ResumeToken.decode("A" * (TOKEN_CHARS_MAX + 1), *OF, PAIRS)


@st.composite
def messages(draw: st.DrawFn) -> tuple[TimeShape, Message]:
    shape = draw(SHAPES)
    frontier = st.lists(times(shape), max_size=3).map(tuple)
    counted = st.lists(st.tuples(times(shape), st.integers(0, 9)), max_size=3).map(tuple)
    changes = st.lists(st.tuples(times(shape), st.sampled_from([-1, 1])), max_size=3).map(tuple)
    kinds: list[st.SearchStrategy[Any]] = [
        st.builds(Snapshot, frontier, frontier),
        st.builds(FrontierUpdate, changes, counted),
        st.builds(Data, times(shape), st.binary(max_size=20), st.integers(0, 9)),
        st.builds(Skip, frontier, frontier, counted),
        st.builds(Heartbeat, frontier),
        st.builds(Aborted, st.text(max_size=9)),
    ]
    return shape, draw(st.one_of(kinds))


@settings(deadline=None)
@given(messages())
def test_a_message_survives_its_frames(case: tuple[TimeShape, Message]) -> None:
    shape, message = case
    head, payload = encode(message)
    decoded = decode_head(head, shape)
    if isinstance(message, Data):
        assert isinstance(decoded, DataHead)
        assert with_payload(decoded, payload) == message
        assert message.payload not in head or len(message.payload) < 8
    else:
        assert decoded == message
        assert payload is None


@settings(deadline=None)
@given(st.binary(max_size=40), SHAPES)
def test_other_bytes_are_refused_or_are_a_head(frame: bytes, shape: TimeShape) -> None:
    try:
        head = decode_head(frame, shape)
    except EpochMessageError:
        return
    message = with_payload(head, b"") if isinstance(head, DataHead) else head
    assert decode_head(encode(message)[0], shape) == head


def test_heads_of_the_wrong_shape_size_or_sign_are_refused() -> None:
    bad: list[Message] = [
        Snapshot(((1, 1),), ()),
        FrontierUpdate((), (((1, 1), 1),)),
        FrontierUpdate((), ((1, -1),)),
        Data((1, 1), b""),
        Data(1, b"", -1),
        Skip((), ((1, 1),)),
        Heartbeat((-1,)),
        Aborted("x" * HEAD_BYTES_MAX),
    ]
    for message in bad:
        with pytest.raises(EpochMessageError):
            decode_head(encode(message)[0], INTEGERS)


def test_links_are_quiet_after_the_limit() -> None:
    links = QuietLinks(100)
    links.heard("a", 0)
    links.heard("b", 50)
    assert links.quiet(99) == []
    assert links.quiet(100) == ["a"]
    links.heard("a", 120)
    links.forget("b")
    links.forget("never")
    assert links.quiet(200) == []
    with pytest.raises(InvalidConfigError):
        QuietLinks(0)
