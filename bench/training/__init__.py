"""What a training program needs beside its model: the optimizer and lower precision."""

TARGETS = ["tessera_app", "bench_adamw", "bench_ddp"]
PARTS = ["adamw", "autocast"]
