"""Checkpoints: saving, what an asynchronous save stops training for, loading, damage, beside PyTorch's and the bare disk."""

TARGETS = ["tessera_app", "bench_checkpoint", "bench_corruption"]
PARTS = ["save", "pause", "load", "corruption"]
