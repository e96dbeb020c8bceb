"""Collectives: against bare Gloo and MPI, over a slow link, from a standing start, and at a scale."""

TARGETS = ["tessera_app"]
PARTS = ["collectives", "two_nodes", "start_up", "scale"]
