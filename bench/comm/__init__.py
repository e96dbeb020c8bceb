"""Collectives: against bare Gloo and MPI, over a slow link, from the start of processes, and with many ranks."""

TARGETS = ["tessera_app"]
PARTS = ["collectives", "two_nodes", "start_up", "scale"]
