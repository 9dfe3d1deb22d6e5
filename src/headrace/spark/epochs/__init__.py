"""Whole epochs in Spark: a micro-batch is one or several of them, read and written."""
