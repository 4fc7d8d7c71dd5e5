"""Measuring on GPUs: clocks, contracts, records. Knows GPUs and statistics, not RecoverSSM."""

HARNESS_VERSION = "3"
"""Raised whenever a number could come out differently for the same kernel; a change cuts every series."""
