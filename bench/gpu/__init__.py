"""Training on GPUs: a step of our DDP and FSDP beside PyTorch's. --simulate: ours on the simulated device."""

TARGETS = ["bench_fsdp"]
PRESET = "cuda"
SIMULATED_TARGETS = ["bench_fsdp_simulated"]  # of the preset `default`
PARTS = ["training"]
