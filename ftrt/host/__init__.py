"""What the processes of a host share: the board, its mutexes, and the agent that decides."""
