"""What a training program needs beside its model: the optimizer, lower precision, data, and an observer."""

TARGETS = ["tessera_app", "bench_adamw", "bench_data", "bench_ddp", "bench_watching"]
PARTS = ["adamw", "autocast", "data", "watching"]
