"""Processes that carry out each line of their input, answer with a line of JSON, and sleep in between."""

import json
import select
import subprocess

from harness.machine import Foreign
from harness.ranks import Ranks, free_port, variables

TIMEOUT = 300  # seconds for one answer; the first answer includes the setup of the contestant


class Answering:
    """`with Answering(command, size) as ranks:`. A line is VARIANT COUNT, where the variant may be several words; the
    answer repeats it, so that a mix-up is noticed. All ranks get the same lines."""

    def __init__(self, command, size=1):
        self.command = command
        self.size = size
        self.ranks = Ranks()
        self.processor_seconds = 0.0  # of all ranks together, for the last answer

    def __enter__(self):
        port = free_port()
        for rank in range(self.size):
            environment = {**variables(rank, self.size, "127.0.0.1", port), "GLOO_SOCKET_IFNAME": "lo"}
            self.ranks.start(self.command, environment, stdin=subprocess.PIPE)
        return self

    def __exit__(self, *failure):
        self.ranks.__exit__(*failure)

    def ask(self, variant, count):
        """Returns each rank's answer, and how many cores other processes used meanwhile."""
        with Foreign([process.pid for process in self.ranks.processes]) as foreign:
            for process in self.ranks.processes:
                self.tell(process, f"{variant} {count}\n")
            answers = [self.answer(process, variant) for process in self.ranks.processes]
        self.processor_seconds = foreign.own_work
        return answers, foreign.cores

    def tell(self, process, line):
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            self.ranks.fail("a rank has ended")

    def answer(self, process, variant):
        # One line answers one question, so nothing is left in the buffer that select() would not see.
        if not select.select([process.stdout], [], [], TIMEOUT)[0]:
            self.ranks.fail(f"{variant}: no answer within {TIMEOUT} s")
        line = process.stdout.readline()
        if not line:
            self.ranks.fail(f"{variant}: a rank has ended")
        answer = json.loads(line)
        if answer["variant"] != variant:
            raise RuntimeError(f"asked for {variant}, the answer is of {answer['variant']}")
        return answer

    def finish(self):
        """Waits for the end of all ranks and fails unless all of them succeed."""
        self.ranks.wait(TIMEOUT)
