"""What Spark looks for: a module ``pyspark_<name>`` registers its source by itself."""

from __future__ import annotations

from headrace.spark.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
