"""Planted bugs of partitioned groups: claims, pins, distributions, names and rules.

What the field is known to get wrong is among them: stale acks that count, partitions that move
too much, names sorted in another order, groups that share a derived name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.errors import InvalidGroupConfigError
from headrace.groups.partitioned.core import config as config_module
from headrace.groups.partitioned.core import distribution, pins
from headrace.groups.partitioned.core.changes import add_members, set_mappings
from headrace.groups.partitioned.core.config import (
    Distribution,
    ElasticGroupConfig,
    MemberMapping,
    make_elastic,
)
from headrace.groups.partitioned.core.distribution import blocks, moved
from headrace.groups.partitioned.core.membership import Instance
from headrace.groups.partitioned.core.messages import ClaimPartition
from headrace.groups.partitioned.core.partitions import Partitions
from headrace.groups.partitioned.core.pins import ClaimGranted
from headrace.groups.partitioned.core.transitions import Stage
from headrace.groups.partitioned.names import GroupName
from headrace.log import order
from headrace.sim.faults import Fault
from headrace.sim.planted import (
    Original,
    PlantedBug,
    by_search,
    by_seeds,
    patched,
    seeded_bug,
)
from headrace.sim.scenarios import partitioned_member as member_module

# --- changes -------------------------------------------------------------------------------


def _always(value: Any) -> Callable[[Original], Original]:
    def change(original: Original) -> Original:  # noqa: ARG001
        return lambda *args, **kwargs: value  # noqa: ARG005

    return change


def _same_token(original: Original) -> Original:
    def judge(*args: Any, **kwargs: Any) -> Any:
        verdict = original(*args, **kwargs)
        claim = kwargs["claim"]
        return ClaimGranted(claim.token) if claim and isinstance(verdict, ClaimGranted) else verdict

    return judge


def _any_partition(original: Original) -> Original:
    """The claim is judged as if the config gave everything to everyone."""

    def judge(partition: int, claimant: Any, **kwargs: Any) -> Any:
        config = kwargs["config"]
        if not isinstance(config, ElasticGroupConfig):
            return original(partition, claimant, **kwargs)
        everything = MemberMapping(claimant.member, tuple(range(config.max_members)))
        mapped = set_mappings(config, [everything])
        return original(partition, claimant, **(kwargs | {"config": mapped}))

    return judge


def _flaps(original: Original) -> Original:
    def on_config(self: Instance, revision: int, config: Any) -> None:
        original(self, revision, config)
        if self.pin_token is not None:
            self._step_down("the config has changed")

    return on_config


def _asks_for_all(original: Original) -> Original:  # noqa: ARG001
    """News of freed claims makes a member ask for all that it once asked for."""

    def retry(self: Partitions) -> None:
        for partition, part in self.parts.items():
            if part.stage is Stage.CLAIMING:
                self._out.do(ClaimPartition(partition, self.pin_token))

    return retry


def _never_asks_again(original: Original) -> Original:
    def stand_by(self: Instance, holder: str, expires_in_ms: int) -> None:
        original(self, holder, expires_in_ms)
        self._pin_at_ms += 10**9

    return stand_by


def _keeps_what_moved(original: Original) -> Original:
    def want(self: Partitions, wanted: frozenset[int]) -> None:
        gone = {p: part for p, part in self.parts.items() if p not in wanted}
        for partition in gone:
            del self.parts[partition]
        original(self, wanted)
        self.parts.update(gone)

    return want


def _sticky_as_blocks(original: Original) -> Original:  # noqa: ARG001
    return lambda previous, members, partitions: blocks(members, partitions)  # noqa: ARG005


def _sticky_lopsided(original: Original) -> Original:
    def lopsided(previous: Any, members: Any, partitions: int) -> Any:
        made = original(previous, members, partitions)
        kept = {m: tuple(p for p in previous.get(m, ()) if p < partitions) for m in made}
        whole = sorted(p for owned in kept.values() for p in owned) == list(range(partitions))
        return kept if whole else made

    return lopsided


def _natural_order(original: Original) -> Original:
    return lambda members: sorted(original(members), key=lambda name: (len(name), name.lower()))


def _utf16_order(original: Original) -> Original:
    return lambda members: sorted(original(members), key=lambda name: name.encode("utf-16-be"))


def _hyphen(original: Any) -> Any:  # noqa: ARG001
    return property(lambda self: f"{self.stream}-{self.group}")


def _by_floors_alone(_: Original) -> Original:
    def standing_at(segments: Any, floors: Any) -> Any:
        through = {s.number for s in segments if s.sealed and floors[s.number] >= s.head}
        left = [s for s in segments if s.number not in through]
        ready = tuple(s.number for s in left if through.issuperset(s.predecessors))
        waiting = tuple(s.number for s in left if s.number not in ready)
        return order.Standing(ready, waiting, frozenset(through))

    return standing_at


# --- hunts ---------------------------------------------------------------------------------

GOLDEN_BLOCKS: tuple[tuple[list[str], int, dict[str, tuple[int, ...]]], ...] = (
    (["m1", "m2"], 3, {"m1": (0, 2), "m2": (1,)}),
    (["m2", "m10", "m1"], 2, {"m1": (0,), "m10": (1,), "m2": ()}),
    (["B", "a", "A", "b"], 4, {"A": (0,), "B": (1,), "a": (2,), "b": (3,)}),
    (["😀", "ﬀ", "z"], 7, {"z": (0, 1, 6), "ﬀ": (2, 3), "😀": (4, 5)}),
)


def _hunt_golden_blocks() -> str | None:
    for members, partitions, expected in GOLDEN_BLOCKS:
        if blocks(members, partitions) != expected:
            return f"golden case: {partitions} partitions over {members}"
    return None


def _hunt_sticky() -> str | None:
    """Known minima, and balance, through the changes of a config."""
    for partitions, before, after, fewest in ((1024, 4, 5, 205), (1024, 11, 12, 85), (16, 8, 9, 2)):
        names = [f"m{n}" for n in range(after)]
        config = make_elastic(
            max_members=partitions,
            filter="o.*",
            partitioning_wildcards=[1],
            members=names[:before],
            distribution=Distribution.STICKY,
        )
        changed = add_members(config, names)
        moves = len(moved(config.assignment(), changed.assignment()))
        if moves > fewest:
            return f"{before} to {after} members move {moves} of {partitions}, not {fewest}"
        sizes = [len(owned) for owned in changed.assignment().values()]
        if max(sizes) - min(sizes) > 1:
            return f"{before} to {after} members own from {min(sizes)} to {max(sizes)} partitions"
    return None


def _hunt_names() -> str | None:
    groups = [
        GroupName("a-b", "c"),
        GroupName("a", "b-c"),
        GroupName("a", "b"),
        GroupName("a", "c"),
    ]
    if len({group.work_queue for group in groups}) < len(groups):
        return "two groups share a work queue"
    return None


def _hunt_rules() -> str | None:
    wrong: tuple[tuple[tuple[int, ...], ...], ...] = (
        ((0, 1), (1,)),
        ((0,), (1,)),
        ((0, 1), (2, 3)),
        ((0, 1), (-1, 2)),
    )
    for owned in wrong:
        mappings = [MemberMapping(f"m{i}", partitions) for i, partitions in enumerate(owned)]
        try:
            make_elastic(
                max_members=3, filter="o.*", partitioning_wildcards=[1], member_mappings=mappings
            )
        except InvalidGroupConfigError:
            continue
        return f"the mapping {owned} of 3 partitions was accepted"
    return None


_by_sim = partial(seeded_bug, "partitioned")


PLANTED = (
    _by_sim(
        "partitioned/double-ack-does-not-fence",
        "acks of an instance that has lost the partition still count",
        member_module,
        "check_claim",
        _always(None),
        first=29,
    ),
    _by_sim(
        "partitioned/claimed-before-release",
        "a partition is claimed while its owner has neither finished nor lost its pin",
        pins,
        "is_free",
        _always(True),
    ),
    _by_sim(
        "partitioned/token-does-not-grow",
        "a new owner gets the token of the one before",
        member_module,
        "judge_claim",
        _same_token,
    ),
    _by_sim(
        "partitioned/claims-what-is-not-its-own",
        "a claim is granted whatever the config says",
        member_module,
        "judge_claim",
        _any_partition,
    ),
    _by_sim(
        "partitioned/active-instance-flaps",
        "the pinned instance gives up the pin whenever the config changes",
        Instance,
        "_on_config",
        _flaps,
    ),
    _by_sim(
        "partitioned/standby-gives-up",
        "an instance that found the pin taken never asks again",
        Instance,
        "_stand_by",
        _never_asks_again,
        first=27,
    ),
    _by_sim(
        "partitioned/keeps-what-moved",
        "a partition that the config gave away is not given back",
        Partitions,
        "want",
        _keeps_what_moved,
        first=13,
    ),
    PlantedBug(
        "partitioned/forgotten-claim",
        "a claim whose answer was lost is kept for ever",
        lambda: patched(Partitions, "give_back_unknown", _always(None)),
        by_seeds("partitioned", 200, first=50, faults=frozenset({Fault.LOSE})),
    ),
    _by_sim(
        "partitioned/stall-tolerated",
        "a consumer that answers nothing keeps its partitions",
        Instance,
        "_on_stalled",
        _always(None),
    ),
    _by_sim(
        "partitioned/empty-ends-early",
        "a segment that was split while it was empty ends before what came before it",
        order,
        "standing_at",
        _by_floors_alone,
    ),
    PlantedBug(
        "partitioned/freed-claims-unheard",
        "news that a partition was released makes nobody ask for it",
        lambda: patched(Partitions, "retry", _always(None)),
        by_search("it moves back", 9),
    ),
    PlantedBug(
        "partitioned/freed-claims-for-all",
        "news that a partition was released makes a member ask for what is another's by now",
        lambda: patched(Partitions, "retry", _asks_for_all),
        by_search("it moves back", 10),
    ),
    PlantedBug(
        "partitioned/sticky-is-not-minimal",
        "sticky moves as much as blocks do",
        lambda: patched(config_module, "sticky", _sticky_as_blocks),
        _hunt_sticky,
    ),
    PlantedBug(
        "partitioned/sticky-is-not-balanced",
        "sticky leaves everything where it is",
        lambda: patched(config_module, "sticky", _sticky_lopsided),
        _hunt_sticky,
    ),
    PlantedBug(
        "partitioned/members-in-natural-order",
        "m2 sorts before m10, and upper case like lower case",
        lambda: patched(distribution, "sorted_members", _natural_order),
        _hunt_golden_blocks,
    ),
    PlantedBug(
        "partitioned/members-in-utf-16-order",
        "names sort by UTF-16 units, not by bytes",
        lambda: patched(distribution, "sorted_members", _utf16_order),
        _hunt_golden_blocks,
    ),
    PlantedBug(
        "partitioned/groups-share-a-work-queue",
        "stream and group are joined by a character that both may have",
        lambda: patched(GroupName, "key", _hyphen),
        _hunt_names,
    ),
    PlantedBug(
        "partitioned/mappings-unchecked",
        "a mapping may leave partitions out or give one to two members",
        lambda: patched(config_module, "_check_mappings", _always(None)),
        _hunt_rules,
    ),
)
