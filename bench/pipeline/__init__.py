"""Pipelines: a step beside PyTorch's with the same schedule, and beside what the schedule and the stages allow."""

TARGETS = ["bench_pipeline", "tessera"]
PARTS = ["training"]
