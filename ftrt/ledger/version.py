"""Version of the ledger's format, of records and of HDF5 files alike."""

VERSION = 1
