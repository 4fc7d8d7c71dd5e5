"""Stands in for ``benchmarks.compile_first``: there is nothing to compile."""
