"""What the processes of one host share: the board, its mutexes, and the agent that decides for them."""
