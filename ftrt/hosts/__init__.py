"""What agents of several hosts do over messages: the fault-free sweep and the uniform agreement."""
