"""Arguments of public calls, checked by their annotations before anything is done.

Text is Unicode without NUL, as PostgreSQL, file names and terminals need it; numbers fit 64 bits
and are finite.  A record of options checks its own fields.  What an annotation does not tell
(``Any``, functions, booleans) is left to the call itself.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from headrace.errors import InvalidInputError

P = ParamSpec("P")
T = TypeVar("T")

INT_BITS = 64
SHOWN = 60
"""An error shows this many characters of a value."""


def checked(fn: Callable[P, T]) -> Callable[P, T]:
    """Check the arguments of every call of a public function."""
    signature = inspect.signature(fn)

    @functools.cache  # when it is first called: by then all annotations have a meaning
    def hints() -> dict[str, Any]:
        return typing.get_type_hints(fn)

    def check(*args: Any, **kwargs: Any) -> inspect.BoundArguments:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{fn.__qualname__}(): {error}") from None
        for name, value in bound.arguments.items():
            if name in hints() and not _is_variadic(signature.parameters[name]):
                if typing.get_origin(hints()[name]) is Iterable and _is_once(value):
                    value = bound.arguments[name] = tuple(value)
                check_value(name, value, hints()[name])
        return bound

    if inspect.iscoroutinefunction(fn):

        async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
            bound = check(*args, **kwargs)
            return await fn(*bound.args, **bound.kwargs)

        return typing.cast("Callable[P, T]", functools.wraps(fn)(later))

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = check(*args, **kwargs)
        return fn(*bound.args, **bound.kwargs)

    return functools.wraps(fn)(call)


def checked_calls(*but: str) -> Callable[[type[T]], type[T]]:
    """Check the arguments of all public methods of a class, ``but`` those that do it themselves,
    since they are called for every event."""

    def check(kind: type[T]) -> type[T]:
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method) and not name.startswith("_") and name not in but:
                setattr(kind, name, checked(method))
        return kind

    return check


def check_value(name: str, value: object, hint: Any) -> None:
    """Raise an error that names the argument, unless the value fits its annotation."""
    for where, what, wanted in _faults(name, value, hint):
        raise InvalidInputError(f"{where} is {_shown(what)}; it has to be {wanted}")


def check_fields(record: msgspec.Struct) -> None:
    """Raise an error that names the field, unless all fields of a record fit their annotations."""
    for field, hint in _hints(type(record)).items():
        check_value(f"{type(record).__name__}.{field}", getattr(record, field), hint)


# To find them compiles every annotation, which took most of the time in which a member joins.
_hints = functools.cache(typing.get_type_hints)


def _is_variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)


def _is_once(value: object) -> bool:
    """Whether it is an iterator, or can only be iterated."""
    return isinstance(value, Iterable) and not isinstance(value, Collection)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


Fault = tuple[str, object, str]
"""Where it is, what is there, and what has to be."""


def _faults(where: str, value: object, hint: Any) -> Iterator[Fault]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        found = [next(_faults(where, value, each), None) for each in inner]
        faults = [fault for fault in found if fault is not None]
        if len(faults) == len(found):
            deepest = max(faults, key=lambda fault: len(fault[0]))
            wanted = " or ".join(dict.fromkeys(fault[2] for fault in faults))
            # A fault deeper within is of a kind that fits but for that part.
            yield deepest if deepest[0] != where else (where, value, wanted)
    elif origin is typing.Literal:
        if value not in inner:
            yield where, value, " or ".join(map(repr, inner))
    elif origin is not None:
        yield from _faults_within(where, value, origin, inner)
    elif hint in _PLAIN:
        fits, wanted = _PLAIN[hint]
        if not fits(value):
            yield where, value, wanted
    elif isinstance(hint, type) and not isinstance(value, hint):
        yield where, value, hint.__name__


def _faults_within(
    where: str, value: object, origin: Any, inner: tuple[Any, ...]
) -> Iterator[Fault]:
    """Faults of a collection and its parts."""
    if not (isinstance(origin, type) and issubclass(origin, Iterable)):
        return
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            yield where, value, "a mapping"
            return
        for key, part in value.items():
            yield from _faults(f"a key of {where}", key, inner[0])
            yield from _faults(f"{where}[{_shown(key)}]", part, inner[1])
    elif isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        yield where, value, "a list" if origin is not tuple else "a tuple"
    else:
        hints = inner if origin is tuple and Ellipsis not in inner else None
        if hints is not None and len(hints) != len(value):
            yield where, value, f"a tuple of {len(hints)}"
            return
        for at, part in enumerate(value):
            yield from _faults(f"{where}[{at}]", part, inner[0] if hints is None else hints[at])


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < INT_BITS


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and isfinite(value))


def _is_path(value: object) -> bool:
    return isinstance(value, Path) and _is_text(str(value))


_ANY: tuple[Callable[[object], bool], str] = (lambda _: True, "anything")

_PLAIN: dict[Any, tuple[Callable[[object], bool], str]] = {
    str: (_is_text, "text without NUL and lone surrogates"),
    int: (_is_whole, f"a whole number of less than {INT_BITS} bits"),
    float: (_is_number, "a finite number"),
    Path: (_is_path, "a path"),
    type(None): (lambda value: value is None, "None"),
    **dict.fromkeys((Any, object, bool), _ANY),
}
