"""The deterministic simulator: the production core under every fault that one seed can hold."""
