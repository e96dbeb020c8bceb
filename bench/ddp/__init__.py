"""Data parallelism: a step beside PyTorch's DDP, ranks that drift apart, and replicas in one process."""

TARGETS = ["tessera_app", "bench_ddp", "bench_replicas", "bench_staleness"]
PARTS = ["training", "staleness", "replicas"]
