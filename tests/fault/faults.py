"""Jobs in which one rank does something wrong, and what must come of it."""

import dataclasses
import os
import re
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

RANKS = 4
TIMEOUT = 60                 # of a whole job
COMMUNICATION_TIMEOUT = 9    # seconds that a call may take in these jobs
NOTICED_WITHIN = 5 + 2       # the configured limits (5 s), and the grace
MARK = "TESSERA_FAULT_RUN"   # finds processes that outlive a job


@dataclasses.dataclass
class Fault:
    name: str
    says: list               # regular expressions that the output must match; V is the victim
    exit_codes: set
    names_line: bool = True  # whether others wait at the line of the collective
    ends: bool = True        # whether the job ends by it


LINE = r"fault_rank\.cpp:{line}\b"
FAULTS = {fault.name: fault for fault in [
    Fault("kill", [r"rank V (is dead|was killed|.*SIGKILL)"], {137, 3}),
    Fault("stop", [r"rank V is stopped"], {3}),
    Fault("abort", [r"rank V.*SIGABRT|rank V is dead"], {134, 3}),
    Fault("throw", [r"the dog ate the batch"], {134, 3}),
    Fault("loop", [r"rank V has not come to all_reduce", r"spin"], {3}),
    Fault("read", [r"rank V has not come to all_reduce"], {3}),
    Fault("slow", [r"SLOW", r"rank V has not come to all_reduce"], {0}, ends=False),
    Fault("exit", [r"rank V is dead"], {3}),
    # Gloo ends a process whose peer sends another number of bytes with std::terminate, from a thread of its own.
    Fault("skip", [r"odd one out is rank V"], {2, 3}),
    Fault("operation", [r"odd one out is rank V"], {2, 3}),
    Fault("shape", [r"odd one out is rank V"], {2, 3, 134}),
    Fault("dtype", [r"odd one out is rank V"], {2, 3, 134}),
    Fault("absent", [r"3 of 4 ranks came"], {3}, names_line=False),
]}


def collective_line():
    """The line of fault_rank.cpp that reports must name."""
    source = (Path(__file__).parent / "fault_rank.cpp").read_text().splitlines()
    return next(number for number, text in enumerate(source, 1) if "the line that reports must name" in text)


@dataclasses.dataclass
class Outcome:
    exit_code: int
    text: str
    seconds_to_notice: float | None
    seconds_to_end: float | None
    faults: list             # sentences; empty when all is as it should be


class Job:
    """One run of a command in which a victim announces its fault; reads the output as it comes."""

    def __init__(self, command, environment=None):
        self.token = uuid.uuid4().hex
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {}), MARK: self.token}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables)
        self.lines = []      # (seconds, text)

    def read_all(self):
        os.set_blocking(self.process.stdout.fileno(), True)
        timer_end = time.monotonic() + TIMEOUT
        for raw in self.process.stdout:
            self.lines.append((time.monotonic(), raw.decode(errors="replace").rstrip("\n")))
            if time.monotonic() > timer_end:
                break
        try:
            return self.process.wait(max(0.1, timer_end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def survivors(self, patience=2.0):
        """Processes of this job that still run; a moment is given to those that are ending."""
        end = time.monotonic() + patience
        while (alive := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self.owns(pid)]):
            if time.monotonic() > end:
                return alive
            time.sleep(0.02)
        return []

    def owns(self, pid):
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            return status not in "ZX" and f"{MARK}={self.token}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except (OSError, IndexError):
            return False


def judge(fault, victim, job, exit_code):
    text = "\n".join(line for _, line in job.lines)
    announced = re.search(r"fault at (\d+\.\d+)", text)
    begin = float(announced.group(1)) if announced else None
    patterns = [re.compile(pattern.replace("rank V", f"rank {victim}")) for pattern in fault.says]
    noticed = next((when for when, line in job.lines if patterns[0].search(line)), None)
    problems = []
    if begin is None:
        problems.append("the victim never came to its fault")
    for pattern in patterns:
        if not pattern.search(text):
            problems.append(f"nothing matches {pattern.pattern!r}")
    if fault.names_line and not re.search(LINE.format(line=collective_line()), text):
        problems.append("no report names the line of the collective")
    if exit_code not in fault.exit_codes:
        problems.append(f"exit code {exit_code}, expected one of {sorted(fault.exit_codes)}")
    seconds = noticed - begin if noticed and begin else None
    if seconds is not None and seconds > NOTICED_WITHIN:
        problems.append(f"noticed after {seconds:.1f} s, the bar is {NOTICED_WITHIN} s")
    if not fault.ends and f"rank {victim} is done" not in text:
        problems.append("a rank that was only slow was ended")
    for pid in job.survivors():
        problems.append(f"process {pid} outlives the job")
        os.kill(pid, signal.SIGKILL)
    ended = job.lines[-1][0] - begin if job.lines and begin else None
    return Outcome(exit_code, text, seconds, ended, problems)


def run_fault(tessera, program, name, victim, backend, log_dir=None):
    """One job under `tessera run`."""
    fault = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder:
        command = [tessera, "run", "--nproc-per-node", RANKS, "--log-dir", log_dir or folder, "--",
                   program, name, victim, backend, COMMUNICATION_TIMEOUT]
        job = Job([str(word) for word in command])
        return judge(fault, victim, job, job.read_all())
