"""The launcher: how soon faults are noticed, how soon a job trains again, and what being careful costs."""

TARGETS = ["tessera_app", "fault_rank", "bench_recording"]
PARTS = ["recording", "restart", "hostile", "faults"]
