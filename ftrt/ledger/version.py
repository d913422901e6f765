"""Version of the ledger's format, of records and of HDF5 files alike.

Segments of version 1 are read as well: their words are all runs, with a length of 24 bits.
"""

VERSION = 2
