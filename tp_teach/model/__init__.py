"""Plain PyTorch models and their configuration. Knows nothing of parallelism."""
