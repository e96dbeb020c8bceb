"""A job as processes: its output as it comes, and what it leaves behind."""

import os
import signal
import subprocess
import threading
import time
import uuid
from pathlib import Path

MARK = "TESSERA_FAULT_RUN"   # finds processes that outlive a job


def processes_with(token):
    """The processes whose environment holds the token, those that are only waiting to be reaped left out."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if has_token(pid, token)]


def has_token(pid, token):
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return status not in "ZX" and f"{MARK}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except (OSError, IndexError):
        return False


def listening():
    """Of every socket that waits for connections on this machine: its address and port as the kernel shows them, and
    its inode."""
    state_of_listeners = "0A"
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state_of_listeners:
                yield fields[1], fields[9]


class Job:
    """One run of a command, whose descendants are known by a token in their environment."""

    def __init__(self, command, environment=None):
        self.token = uuid.uuid4().hex
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {}), MARK: self.token}
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, env=variables)
        self.lines = []      # (seconds of the monotonic clock, text)

    def read_all(self, timeout, on_line=None):
        """Reads until the end of the output. A job that takes longer than `timeout` is killed, whole. Returns its exit
        code, or None when it was killed."""
        late = threading.Event()
        timer = threading.Timer(timeout, lambda: (late.set(), self.kill()))
        timer.start()
        for raw in self.process.stdout:
            self.lines.append((time.monotonic(), raw.decode(errors="replace").rstrip("\n")))
            if on_line:
                on_line(self.lines[-1][1])
        code = self.process.wait()
        timer.cancel()
        timer.join()
        return None if late.is_set() else code

    def kill(self):
        """All its processes at once, as when their host fails: none sees another one's end."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in processes_with(self.token):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass  # it ended by itself

    def text(self):
        return "\n".join(line for _, line in self.lines)

    def first(self, pattern):
        """When a line first matched."""
        return next((when for when, line in self.lines if pattern.search(line)), None)

    def survivors(self, timeout=2.0):
        """Processes of this job that still run; a moment is given to those that are ending."""
        end = time.monotonic() + timeout
        while alive := processes_with(self.token):
            if time.monotonic() > end:
                return alive
            time.sleep(0.02)
        return []
