"""How much memory several processes hold together, as the system counts it, during a block of code."""

import threading

PERIOD = 0.05  # seconds; each sample walks all pages of a process


def kilobytes(path, key):
    with open(path) as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0])
    raise RuntimeError(f"{path} has no {key}")


def proportional_bytes(processes):
    """A page that several processes share counts once: a part of it for each process."""
    return 1024 * sum(kilobytes(f"/proc/{process}/smaps_rollup", "Pss") for process in processes)


def high_water_bytes(processes):
    """The sum of each process's largest resident set. It misses no peak, but counts shared pages several times."""
    return 1024 * sum(kilobytes(f"/proc/{process}/status", "VmHWM") for process in processes)


class Resident:
    """`with Resident(processes) as resident:`; afterwards `resident.peak` is the largest total of bytes among the
    samples that a thread took meanwhile. Requires: the processes outlive the block."""

    def __init__(self, processes):
        self.processes = list(processes)
        self.peak = 0
        self.failure = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        try:
            while True:
                self.peak = max(self.peak, proportional_bytes(self.processes))
                if self.ended.wait(PERIOD):
                    return
        except (OSError, RuntimeError) as error:
            self.failure = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *failure):
        self.ended.set()
        self.thread.join()
        if self.failure and not failure[0]:
            raise RuntimeError(f"a process could not be looked at: {self.failure}")
