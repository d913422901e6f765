"""``ftrt campaign``: the paper's experiment, trial by trial, beside a rule that trusts completion.

A *cell* is a plane, a path, a fault, a rule and a size. Its trials run in *batches*: one job each,
in which one trial follows the other on one stream, so that a trial starts no process unless its
fault ends one. What happened is counted from the ledger and from a trace that no recovery reads.
"""
