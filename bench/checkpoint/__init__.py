"""Checkpoints: saving, what an asynchronous save stops training for, and loading, beside PyTorch's and the bare disk."""

TARGETS = ["tessera_app", "bench_checkpoint"]
PARTS = ["save", "pause", "load"]
