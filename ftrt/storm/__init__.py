"""``ftrt storm``: random faults against real jobs, judged by more than the ledger says."""
