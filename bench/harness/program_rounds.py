"""A program of one process that measures by itself, in rounds."""

import json
import subprocess

from harness.machine import Foreign
from harness.ranks import Ranks, free_port, variables

TIMEOUT = 60


def read_rounds(program, rounds):
    """What the program says of itself, a sample for each round, and what others used of the machine meanwhile."""
    with Ranks() as ranks:
        # The process stays until its input ends, so that its processor time can be separated from that of others.
        process = ranks.start([program, rounds], variables(0, 1, "127.0.0.1", free_port()), stdin=subprocess.PIPE)
        with Foreign([process.pid]) as foreign:
            lines = [process.stdout.readline() for _ in range(rounds + 1)]
            if not all(lines):
                ranks.fail("the program has ended")
        ranks.wait(TIMEOUT)
    counts, *samples = [json.loads(line) for line in lines]
    return counts, samples, foreign
