"""The loop of a rank: streams and effects on top of the planes, the ledger and the board."""
