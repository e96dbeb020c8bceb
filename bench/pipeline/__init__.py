"""Pipelines: a step beside PyTorch's with the same schedule, and beside what the schedule and the stages allow."""

TARGETS = ["bench_pipeline", "bench_pipeline_timed", "tessera"]
PARTS = ["peers", "limits", "timed"]
