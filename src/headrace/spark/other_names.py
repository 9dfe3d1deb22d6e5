"""Options of Kafka's and Delta's sources and sinks, and what stands for each of them here."""

from __future__ import annotations

_NAMES = {
    "kafka.bootstrap.servers": "give 'catalog': a folder, or a postgresql:// address",
    "kafka.group.id": "a query's place is its checkpoint; to share a stream with others, join a "
    "reader group with 'group'",
    "groupidprefix": "a query's place is its checkpoint; to share a stream with others, join a "
    "reader group with 'group'",
    "topic": "give 'stream' for a write, 'subscribe' for a read",
    "includeheaders": "leave it out: a column 'headers' is always written",
    "startingoffsetsbytimestampstrategy": "leave it out: a time after the last event is the end",
    "kafkaconsumer.polltimeoutms": "leave it out: events are read from the log itself",
    "fetchoffset.numretries": "leave it out: places are read from the catalog",
    "fetchoffset.retryintervalms": "leave it out: places are read from the catalog",
    "startingversion": "give 'startingOffsets'",
    "maxfilespertrigger": "give 'maxOffsetsPerTrigger' or 'maxBytesPerTrigger'",
    "ignoredeletes": "leave it out: events are only ever appended",
    "ignorechanges": "leave it out: events are only ever appended",
    "skipchangecommits": "leave it out: events are only ever appended",
    "txnappid": "give 'producer'",
    "txnversion": "give 'sequence'",
}


def instead(name: str) -> str | None:
    """What to do instead of giving another system's option; its name is in lower case.

    >>> instead("topic")
    "give 'stream' for a write, 'subscribe' for a read"
    >>> instead("colour") is None
    True
    """
    if name not in _NAMES and name.startswith("kafka."):
        return "leave it out: there is no Kafka client, 'catalog' and 'store' say where the log is"
    return _NAMES.get(name)
