"""The pure core: who is alive, which epoch, what was consumed. Events in, effects out, no I/O."""
