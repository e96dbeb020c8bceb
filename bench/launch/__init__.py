"""The launcher: how soon faults are noticed, how soon a job trains again, and what recording and security cost."""

TARGETS = ["tessera_app", "fault_rank", "bench_recording"]
PARTS = ["recording", "restart", "hostile", "faults"]
