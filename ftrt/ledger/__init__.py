"""What was sent and consumed, in HDF5 files that survive their writers."""
