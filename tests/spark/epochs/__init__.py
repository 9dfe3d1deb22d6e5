"""Tests of whole epochs in Spark."""
