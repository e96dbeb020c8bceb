"""Sharded training: a step and its memory beside PyTorch's FSDP, what interception costs, what compute hides."""

TARGETS = ["tessera_app", "bench_fsdp", "bench_interception"]
PARTS = ["training", "interception", "overlap", "memory"]
