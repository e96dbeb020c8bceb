"""The machine that the figures were measured on, and how much other processes used it."""

import os
import platform
import resource
import time

TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds():
    """Core-seconds during which this machine was busy, or its hypervisor ran something else."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def own_seconds():
    """Core-seconds of this process and of its children that have ended."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def seconds_of(process):
    """Core-seconds of a process that still runs, by its number."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()  # its name may hold spaces
    return (int(fields[11]) + int(fields[12])) / TICKS


def wait_until_quiet(limit, calm=3.0, cores=0.15):
    """Returns True once less than `cores` were in use for `calm` seconds, False when `limit` seconds passed first."""
    end = time.monotonic() + limit
    began = time.monotonic()
    while time.monotonic() < end:
        work, start = busy_seconds(), time.monotonic()
        time.sleep(0.5)
        if (busy_seconds() - work) / (time.monotonic() - start) > cores:
            began = time.monotonic()
        elif time.monotonic() - began >= calm:
            return True
    return False


class Foreign:
    """`with Foreign() as foreign:`; afterwards `foreign.cores` is how many cores other processes used meanwhile, and
    `foreign.own_work` the processor seconds of our own.
    `processes` are the ids of those of our processes that run before the block and after it. Requires: processes that
    the block starts have ended when it ends."""

    def __init__(self, processes=()):
        self.processes = list(processes)

    def own(self):
        return own_seconds() + sum(map(seconds_of, self.processes))

    def __enter__(self):
        self.busy, self.before, self.start = busy_seconds(), self.own(), time.monotonic()
        return self

    def __exit__(self, *_):
        self.own_work = self.own() - self.before
        work = (busy_seconds() - self.busy) - self.own_work
        self.cores = max(0.0, work / (time.monotonic() - self.start))


def field_of(path, key):
    with open(path) as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return "unknown"


def describe():
    kilobytes = field_of("/proc/meminfo", "MemTotal").split()[0]
    return {
        "cores": os.cpu_count(),
        "cpu": field_of("/proc/cpuinfo", "model name"),
        "memory_gib": round(int(kilobytes) / (1 << 20), 1),
        "kernel": platform.release(),
    }
