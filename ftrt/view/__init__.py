"""``ftrt trace`` and ``ftrt top``: a job's records on one timeline, and a job while it runs."""
