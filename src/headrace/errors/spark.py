"""Spark: sessions, source, sink and the pipeline."""

from __future__ import annotations

from headrace.errors.log import Fenced, HeadraceError, InvalidEventError, InvalidInputError


class InvalidSinkError(InvalidInputError):
    """A write to a stream was asked for with options or columns that do not fit it."""


class BadRowError(InvalidEventError):
    """A row of a data frame cannot be an event; ``partition`` and ``row`` say which one."""

    def __init__(self, partition: int, row: int, reason: str) -> None:
        super().__init__(
            f"partition {partition}, row {row}: {reason}; mend the query, or set deadLetterStream "
            "to put such rows aside",
            row=row,
        )
        self.partition = partition
        self.reason = reason


class ReplayMismatchError(HeadraceError):
    """A batch that was committed came again with other rows; these were not written."""

    def __init__(self, producer: str, sequence: int, committed: int, found: int) -> None:
        super().__init__(
            f"batch {sequence} of {producer} was committed with {committed} rows and comes again "
            f"with {found} others: the checkpoint is older than what was written, or the query "
            "does not repeat itself. Start it with a new checkpoint from where it should go on, "
            "or set replay=skip to pass over this batch"
        )
        self.producer = producer
        self.sequence = sequence
        self.committed = committed
        self.found = found


class StagedFileLostError(HeadraceError):
    """A file that a task wrote is gone before its batch was committed; nothing was written."""


class SparkSetupError(HeadraceError):
    """Spark cannot run here as asked; the message says what to install or change."""


class JavaMissingError(SparkSetupError):
    """There is no Java that Spark could run on."""


class JavaTooOldError(JavaMissingError):
    """There is a Java, and it is older than Spark needs."""


class ExecutorPackageError(SparkSetupError):
    """Executors lack this package, or have another version of it."""


class InvalidOptionError(InvalidInputError):
    """An option of a Spark read or write is unknown, malformed, or contradicts another."""


class InvalidSchemaError(InvalidInputError):
    """A schema names a column that is not there, or gives it another type."""


class NotSharedError(SparkSetupError):
    """Executors on other machines cannot reach this catalog or store."""


class ForeignCheckpointError(HeadraceError):
    """A checkpoint belongs to another catalog or stream, or to a later state of this one."""


class DataLossError(HeadraceError):
    """Events that a query has not read yet are gone."""


class UnknownJobError(HeadraceError, LookupError):
    """An event of a job that is not running."""


class PipelineLedError(HeadraceError):
    """Another supervisor leads the pipeline of this catalog."""


class PipelineBrokenError(HeadraceError):
    """The Spark application of a supervisor is gone; start it again."""


class BatchFenced(Fenced):
    """A batch of a query that reads for a group is no longer its own; nothing was written."""

    def __init__(self, why: str) -> None:
        HeadraceError.__init__(
            self, f"{why}; start the query again, it goes on with what it owns by then"
        )


class CheckpointPutBackError(HeadraceError):
    """A checkpoint directory is older than what a sink has counted of it; nothing was written."""

    def __init__(self) -> None:
        super().__init__(
            "a batch of this number was counted before, with other events of the group or before "
            "the group was reset: the checkpoint was put back to an earlier time. Start the query "
            "with a new checkpoint; it goes on with what the group has still to read"
        )


class SinkPublisherError(HeadraceError):
    """The publisher that a Spark write was to use belongs to another query or program."""


class EpochTimeMovedError(HeadraceError):
    """The publisher of a Spark write moved between stage and commit; nothing was written."""


class QueryReplacedError(HeadraceError):
    """Another run of a query has taken the name of its reader over; this one has to end."""

    def __init__(self, group: str, reader: str, owner: str) -> None:
        super().__init__(
            f"reader {reader!r} of group {group!r} was taken over by another run of this query "
            f"({owner}); only one run of a checkpoint can be at work, so this one ends"
        )
        self.owner = owner


class UnknownTaskError(SparkSetupError):
    """Spark does not tell a task which query, run and batch it works for."""
