"""Checkpoints beside PyTorch's and the bare disk: saving, the pause for an asynchronous save, loading, damage."""

TARGETS = ["tessera_app", "bench_checkpoint", "bench_corruption"]
PARTS = ["save", "pause", "load", "corruption"]
