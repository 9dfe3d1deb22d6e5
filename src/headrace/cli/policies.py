"""Retention and scaling policies: from options, and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from headrace.catalog.streams import (
    ByBytes,
    ByEvents,
    Consumed,
    Fixed,
    Groups,
    Limits,
    Retention,
    Scaling,
    StreamConfig,
)
from headrace.cli.failures import UsageError
from headrace.cli.values import duration_s, size_bytes

KEEPING = Group("What is kept", sort_key=10)
SCALING = Group("How it scales", sort_key=11)

Text = str | None
Number = int | None


def _kept(text: str) -> Parameter:
    return Parameter(group=KEEPING, help=text)


def _scaled(text: str) -> Parameter:
    return Parameter(group=SCALING, help=text)


@Parameter(name="*")
@dataclass(frozen=True)
class Policies:
    """The options that say how a stream is kept and scaled."""

    retention: Annotated[
        Literal["limits", "consumed", "groups"] | None,
        _kept(
            "limits: what is within the --retention limits (without any, everything); consumed: a "
            "work queue, events go once acked; groups: what subscribed groups still need, at "
            "least the --keep and at most the --retention limits."
        ),
    ] = None
    retention_age: Annotated[Text, _kept("At most this old: 12h, 7d.")] = None
    retention_bytes: Annotated[Text, _kept("At most this many bytes: 10GB, 2GiB.")] = None
    retention_events: Annotated[Number, _kept("At most this many events.")] = None
    keep_age: Annotated[Text, _kept("With groups: at least this old.")] = None
    keep_bytes: Annotated[Text, _kept("With groups: at least this many bytes.")] = None
    keep_events: Annotated[Number, _kept("With groups: at least this many events.")] = None
    scale_events: Annotated[Number, _scaled("Target of events a second in each segment.")] = None
    scale_bytes: Annotated[Text, _scaled("Target of bytes a second in each segment.")] = None
    scale_factor: Annotated[Number, _scaled("Most parts one split makes (2 if not given).")] = None
    scale_min: Annotated[Number, _scaled("Fewest open segments to keep.")] = None

    def kept(self) -> Retention | None:
        """The retention that is named; None when none is."""
        most = limits(
            self.retention_age, self.retention_bytes, self.retention_events, "--retention"
        )
        least = limits(self.keep_age, self.keep_bytes, self.keep_events, "--keep")
        return retention(self.retention, most, least)

    def scaled(self, kind: str | None = None) -> Scaling | None:
        """The scaling that is named; None when none is."""
        return scaling(kind, self.scale_events, self.scale_bytes, self.scale_factor, self.scale_min)


NO_POLICIES = Policies()


def limits(age: str | None, size: str | None, events: int | None, prefix: str) -> Limits:
    """Limits from the options that start with ``prefix``."""
    age_s = None if age is None else int(duration_s(age, f"{prefix}-age"))
    most_bytes = None if size is None else size_bytes(size, f"{prefix}-bytes")
    for option, given in (("age", age_s), ("bytes", most_bytes), ("events", events)):
        if given is not None and given < 1:
            raise UsageError(f"{prefix}-{option} must be more than nothing")
    return Limits(age_s=age_s, bytes=most_bytes, events=events)


def retention(kind: str | None, most: Limits, least: Limits) -> Retention | None:
    """The policy that the options name; None when they name none."""
    if least != Limits() and kind != "groups":
        raise UsageError("the --keep options go with --retention groups")
    match kind:
        case None:
            return None if most == Limits() else most
        case "limits":
            return most
        case "consumed":
            if most != Limits():
                raise UsageError("--retention consumed takes no limits: events go once acked")
            return Consumed()
        case _:
            return Groups(keep=least, cap=most)


def scaling(
    kind: str | None,
    events: int | None,
    size: str | None,
    factor: int | None,
    minimum: int | None,
) -> Scaling | None:
    """The policy that the options name; None when they name none."""
    if events is not None and size is not None:
        raise UsageError("choose one of --scale-events and --scale-bytes")
    if events is None and size is None:
        if factor is not None or minimum is not None:
            raise UsageError(
                "--scale-factor and --scale-min go with --scale-events or --scale-bytes"
            )
        return None if kind is None else Fixed()
    if kind is not None:
        raise UsageError("--scaling fixed takes no --scale options")
    factor = 2 if factor is None else factor
    minimum = 1 if minimum is None else minimum
    target = events if events is not None else size_bytes(size or "", "--scale-bytes")
    if target < 1 or minimum < 1 or not 2 <= factor <= 64:
        raise UsageError(
            "a scaling target and --scale-min must be 1 or more, and --scale-factor 2 to 64"
        )
    if events is not None:
        return ByEvents(target_per_s=target, factor=factor, minimum=minimum)
    return ByBytes(target_per_s=target, factor=factor, minimum=minimum)


def described(config: StreamConfig) -> str:
    """Both policies in words.

    >>> described(StreamConfig(subjects=("a",), retention=Limits(age_s=3600)))
    'keeps at most 1h; scales on request'
    """
    match config.retention:
        case Limits() as most:
            kept = "everything" if most == Limits() else f"at most {_listed(most)}"
        case Consumed():
            kept = "what is not acked yet"
        case Groups(keep=keep, cap=cap):
            kept = "what groups still need"
            kept += "" if keep == Limits() else f", at least {_listed(keep)}"
            kept += "" if cap == Limits() else f", at most {_listed(cap)}"
    match config.scaling:
        case Fixed():
            scaled = "scales on request"
        case ByEvents(target_per_s=target, minimum=minimum):
            scaled = f"scales to {target:,} events/s a segment, {minimum} or more segments"
        case ByBytes(target_per_s=target, minimum=minimum):
            scaled = f"scales to {size_text(target)}/s a segment, {minimum} or more segments"
    return f"keeps {kept}; {scaled}"


def _listed(most: Limits) -> str:
    parts = []
    if most.age_s is not None:
        parts.append(duration_text(most.age_s))
    if most.bytes is not None:
        parts.append(size_text(most.bytes))
    if most.events is not None:
        parts.append(f"{most.events:,} events")
    return " and ".join(parts)


def duration_text(seconds: int) -> str:
    """In the largest unit that fits.

    >>> duration_text(604800), duration_text(5400)
    ('1w', '90m')
    """
    for unit, length in (("w", 604_800), ("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def size_text(size: int) -> str:
    """A size for people.

    >>> size_text(999), size_text(1_500_000)
    ('999 B', '1.5 MB')
    """
    if size < 1000:
        return f"{size} B"
    power = min(5, (len(str(size)) - 1) // 3)
    return f"{size / 1000**power:.1f} {'kMGTP'[power - 1]}B"
