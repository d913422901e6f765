"""Fault-tolerant message streams for MPI jobs: every message takes effect exactly once."""

__version__ = "0.1.0"
