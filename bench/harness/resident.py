"""How much memory processes hold together, as the system counts it, while something runs."""

import threading

PERIOD = 0.05  # seconds; a look at a process walks all of its pages


def kilobytes(path, key):
    with open(path) as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0])
    raise RuntimeError(f"{path} has no {key}")


def proportional_bytes(processes):
    """A page that several share counts once: each has its part of it."""
    return 1024 * sum(kilobytes(f"/proc/{process}/smaps_rollup", "Pss") for process in processes)


def high_water_bytes(processes):
    """The largest resident set that each has had, added up. Misses no peak, but shared pages count for each."""
    return 1024 * sum(kilobytes(f"/proc/{process}/status", "VmHWM") for process in processes)


class Resident:
    """`with Resident(processes) as resident:` and then `resident.peak`: the most bytes of all together, of the samples
    that a thread took meanwhile. Requires: the processes outlive the block."""

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
