"""Tensor parallelism: a step beside PyTorch's DTensor and a model written by hand, and the cost of an operator."""

TARGETS = ["bench_tensor", "bench_cut_operators"]
PARTS = ["training", "operators"]
