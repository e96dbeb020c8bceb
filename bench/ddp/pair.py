"""Two ranks that train what they are told to, and sleep in between."""

import json
import select
import subprocess

from harness.machine import Foreign
from harness.ranks import Ranks, free_port, variables

SIZE = 2
TIMEOUT = 300  # seconds for one answer; the first one of a contestant includes the making of its model


class Pair:
    """`with Pair(command) as pair:`. The protocol is that of bench/ddp/main.cpp."""

    def __init__(self, command):
        self.command = command
        self.ranks = Ranks()

    def __enter__(self):
        port = free_port()
        for rank in range(SIZE):
            environment = {**variables(rank, SIZE, "127.0.0.1", port), "GLOO_SOCKET_IFNAME": "lo"}
            self.ranks.start(self.command, environment, stdin=subprocess.PIPE)
        return self

    def __exit__(self, *failure):
        self.ranks.__exit__(*failure)

    def train(self, kind, precision, steps):
        """Each rank's answer, and how many cores others used meanwhile."""
        with Foreign([process.pid for process in self.ranks.processes]) as foreign:
            for process in self.ranks.processes:
                self.ask(process, f"{kind} {precision} {steps}\n")
            answers = [self.answer(process, f"{kind} {precision}") for process in self.ranks.processes]
        return answers, foreign.cores

    def ask(self, process, line):
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
        """Requires that both ranks end well."""
        self.ranks.wait(TIMEOUT)
