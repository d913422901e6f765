"""Starts jobs, injects the faults that were asked for, and judges how they ended."""
