"""Regions: names, links, lanes, replication, and groups that follow their consumers."""

from __future__ import annotations

from headrace.errors.log import HeadraceError, InvalidInputError


class RegionNameError(InvalidInputError):
    """A region's name is missing, taken, or no name."""


class LinkError(InvalidInputError):
    """A link that cannot be made or changed as asked; nothing was changed."""


class QueueNotEmptyError(LinkError):
    """An elastic group is to be replicated whose work queue holds events that are not acked."""


class NotLinkedError(LinkError):
    """Something was asked of a stream that is in no other region."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {stream!r} is linked to no other region; name no regions, or link it with: "
            f"headrace region link {stream} REGION=CATALOG"
        )
        self.stream = stream


class NotWrittenHereError(LinkError):
    """An event was published in a region that does not write the stream."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {stream!r} is not written in this region; publish where it is: `headrace "
            "region status` names it"
        )
        self.stream = stream


class LaneOrderError(HeadraceError):
    """Replicated events do not continue their lane; nothing of the round was appended."""

    def __init__(self, lane: str, sequence: int, expected: int) -> None:
        super().__init__(
            f"events of lane {lane!r} from sequence {sequence} on do not continue it: the next is "
            f"{expected}"
        )
        self.lane = lane
        self.sequence = sequence
        self.expected = expected


class RegionUnreachableError(HeadraceError):
    """Another region's catalog or store cannot be read now."""

    def __init__(self, region: str, why: str) -> None:
        super().__init__(f"region {region!r} cannot be reached: {why}")
        self.region = region


class RegionWentBackError(HeadraceError):
    """Another region has less than it had: it was restored, or its stream was made anew."""

    def __init__(self, region: str, stream: str, why: str) -> None:
        super().__init__(
            f"region {region!r} is not what it was in stream {stream!r}: {why}; if it was restored "
            f"from a copy, run there: headrace region renew"
        )
        self.region = region
        self.stream = stream


class RegionsDifferError(HeadraceError):
    """A stream was split or merged in two regions, each in its own way."""

    def __init__(self, region: str, stream: str, why: str) -> None:
        super().__init__(
            f"stream {stream!r} went another way in region {region!r}: {why}; keep the one of the "
            f"region that writes it: in the other, run `headrace region unlink {stream}`, delete "
            "the stream there, and link it again"
        )
        self.region = region
        self.stream = stream


class LookedAtError(HeadraceError):
    """Something would be written to a catalog that is only looked at."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} belongs to another region, and is only read here")


class CatalogTooOldError(HeadraceError):
    """Another region's catalog has not been opened by a release that knows regions."""

    def __init__(self, where: str, found: int, needed: int) -> None:
        super().__init__(
            f"{where} has version {found}, and regions need {needed}; open it once with this "
            "release, for example by: headrace --catalog … status"
        )


class SwitchError(HeadraceError):
    """A group was not moved to another region; what stands says where it is."""


class SwitchRefusedError(SwitchError, InvalidInputError):
    """A switch or fail-over that makes no sense as things are; nothing was changed."""
