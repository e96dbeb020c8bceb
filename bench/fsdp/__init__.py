"""Sharded training: a step beside PyTorch's FSDP, what interception costs, and what is hidden behind compute."""

TARGETS = ["tessera_app", "bench_fsdp", "bench_interception"]
PARTS = ["training", "interception", "overlap"]
