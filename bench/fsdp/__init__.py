"""Sharded training: a step and its memory beside PyTorch's FSDP, the cost of interception, and the overlap."""

TARGETS = ["tessera_app", "bench_fsdp", "bench_interception"]
PARTS = ["training", "interception", "overlap", "memory"]
