"""Ranks as processes that a plain loop starts: their variables, their output and their end."""

import contextlib
import os
import socket
import subprocess
import tempfile
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def variables(rank, size, address, port, local_size=None):
    """What a launcher would set. Ranks fill node after node."""
    local_size = local_size or size
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank % local_size),
        "LOCAL_WORLD_SIZE": str(local_size),
        "NODE_RANK": str(rank // local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


class Ranks:
    """Started processes; leaving the block ends those that still run. Their standard error is shown on failure only."""

    def __init__(self):
        self.processes = []
        self.errors = tempfile.TemporaryFile(mode="w+")

    def __enter__(self):
        return self

    def start(self, command, environment, stdout=subprocess.PIPE, stdin=None):
        process = subprocess.Popen([str(part) for part in command], env=environment, stdout=stdout, stdin=stdin,
                                   stderr=self.errors, text=True)
        self.processes.append(process)
        return process

    def fail(self, why):
        self.errors.seek(0)
        raise RuntimeError(f"{why}\n{self.errors.read()[-3000:]}")

    def wait(self, timeout):
        """Closes the processes' input and waits until all have succeeded. Returns the output of the first process, the
        only one whose output may be long."""
        end = time.monotonic() + timeout
        for process in self.processes[1:]:  # communicate() does so for the first
            if process.stdin:
                process.stdin.close()
        try:
            output = self.processes[0].communicate(timeout=timeout)[0]
            for process in self.processes[1:]:
                process.wait(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.fail(f"the ranks did not end within {timeout:.0f} s")
        codes = [process.returncode for process in self.processes]
        if any(codes):
            self.fail(f"the ranks ended with {codes}")
        return output

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(BrokenPipeError):  # buffered input can no longer be sent
                    pipe.close()
        self.errors.close()
