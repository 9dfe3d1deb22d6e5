"""The quick look at a query's output says that all is well only where the thorough one does."""

from __future__ import annotations

import pytest

from headrace.groups.progress.ranges import AckedRanges
from headrace.groups.readers.core.segments import SegmentId
from headrace.sim.scenarios.spark_reader import SparkReaderScenario
from headrace.sim.spark_catalog import SparkCatalog
from headrace.sim.spark_output import WrittenOutput
from headrace.sim.world import InvariantViolation, World

A, B = SegmentId("a", 0), SegmentId("a", 1)


@pytest.fixture
def catalog() -> SparkCatalog:
    return SparkCatalog({A: 10, B: 10}, foreign=False)


def test_output_that_matches_the_acks_is_exact_however_it_grows(catalog: SparkCatalog) -> None:
    output = WrittenOutput(catalog)
    for segment, low, high in ((A, 0, 2), (B, 0, 1), (A, 2, 3), (A, 5, 7), (B, 4, 5)):
        catalog.write([(segment, ((low, high),))])
        assert not output.is_exact()
        catalog.ack({segment: ((low, high),)})
        assert output.is_exact()
        assert output.holds()


def test_acks_without_output_do_not_hold(catalog: SparkCatalog) -> None:
    output = WrittenOutput(catalog)
    catalog.write([(A, ((0, 2),))])
    catalog.ack({A: ((0, 2),)})
    assert output.holds()
    catalog.ack({B: ((3, 4),)})
    assert not output.holds()
    assert not output.is_exact()


def test_what_is_written_twice_or_out_of_order_is_not_exact(catalog: SparkCatalog) -> None:
    catalog.ack({A: ((0, 3),)})
    catalog.output += [(A, 0), (A, 1), (A, 1), (A, 2)]
    assert not WrittenOutput(catalog).is_exact()
    catalog.output = [(A, 0), (A, 2), (A, 1)]
    assert not WrittenOutput(catalog).is_exact()
    catalog.output = [(A, 0), (A, 1), (A, 2)]
    assert WrittenOutput(catalog).is_exact()


def test_output_that_was_taken_away_counts_no_longer(catalog: SparkCatalog) -> None:
    output = WrittenOutput(catalog)
    catalog.write([(A, ((0, 4),))])
    catalog.ack({A: ((0, 4),)})
    assert output.is_exact()
    catalog.output = [(A, 0), (A, 1)]
    assert not output.is_exact()
    assert not output.holds()
    catalog.acked[A] = AckedRanges(2)
    assert output.is_exact()


def test_the_scenario_says_what_is_wrong() -> None:
    scenario = SparkReaderScenario(World(0))
    scenario.build()
    scenario.check()
    scenario.catalog.ack({SegmentId("a", 0): ((0, 1),)})
    with pytest.raises(InvariantViolation, match="nothing is acked that was not written"):
        scenario.check()
