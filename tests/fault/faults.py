"""Jobs in which one rank does something wrong, and what must come of it."""

import dataclasses
import os
import re
import signal
import tempfile
import threading
import time
from pathlib import Path

from job import Job

RANKS = 4
TIMEOUT = 60                 # of a whole job
COMMUNICATION_TIMEOUT = 9    # seconds that a call may take in these jobs
NOTICED_WITHIN = 5 + 2       # the configured limits (5 s), and the grace
DEBUGGED_FOR = 8             # seconds


@dataclasses.dataclass
class Fault:
    name: str
    says: list               # regular expressions that the output must match; V is the victim, N the number of ranks
    exit_codes: set
    names_line: bool = True  # whether others wait at the line of the collective
    ends: bool = True        # whether the job ends by it
    signal: int | None = None  # that the driver sends to the victim
    fewest_ranks: int = 2    # two that disagree do not tell who is wrong

    def is_shot(self):
        """Whether the signal comes in the middle of the victim's work, and is the fault."""
        return self.signal is not None and self.ends


FAULTS = {fault.name: fault for fault in [
    Fault("kill", [r"rank V (is dead|was killed|.*SIGKILL)"], {137, 3}),
    Fault("stop", [r"rank V is stopped", r"the job failed because rank V is stopped"], {3}),
    Fault("abort", [r"rank V.*SIGABRT|rank V is dead"], {134, 3}),
    Fault("throw", [r"rank V .*SIGABRT|rank V is dead", r"the dog ate the batch"], {134, 3}),
    Fault("loop", [r"rank V has not come to all_reduce", r"spin"], {3}),
    Fault("read", [r"rank V has not come to all_reduce"], {3}),
    Fault("slow", [r"SLOW", r"rank V has not come to all_reduce"], {0}, ends=False),
    # Stopped for longer than a launcher would take it for dead, by somebody who has raised `lost_after`.
    Fault("debug", [r"rank V is stopped"], {0}, ends=False, signal=signal.SIGCONT),
    Fault("exit", [r"rank V is dead"], {3}),
    # Gloo ends a process whose peer sends another number of bytes with std::terminate, from a thread of its own.
    Fault("skip", [r"odd one out is rank V"], {2, 3}, fewest_ranks=3),
    Fault("operation", [r"odd one out is rank V"], {2, 3}, fewest_ranks=3),
    Fault("shape", [r"odd one out is rank V"], {2, 3, 134}, fewest_ranks=3),
    Fault("dtype", [r"odd one out is rank V"], {2, 3, 134}, fewest_ranks=3),
    Fault("absent", [r"of N ranks came within \d+ ms; rank V did not"], {3}, names_line=False),
    # From outside, at any moment: which call is under way is chance.
    Fault("shot", [r"rank V (is dead|was killed|.*SIGKILL)"], {137, 3}, names_line=False, signal=signal.SIGKILL),
    Fault("frozen", [r"rank V is stopped"], {3}, names_line=False, signal=signal.SIGSTOP),
]}


# In the forward of micro-batch 3 in the victim's stage (see fault_stage.cpp). Reports are compared without their line
# breaks; V + 1 is the rank behind the victim.
IN_THE_STAGE = r"in Forward of micro-batch 3, stage V"
WAITS_FOR_IT = r"RecvActivation of micro-batch 3, stage V\+1, from rank V: recv #\d+ of group .*?, from rank V"
STAGE_FAULTS = {fault.name: fault for fault in [
    Fault("stage_sleep", [r"SLOW", rf"wait for messages of rank V, which is {IN_THE_STAGE}", WAITS_FOR_IT], {3},
          names_line=False),
    Fault("stage_stop", [r"rank V is stopped", rf"rank V is {IN_THE_STAGE}", WAITS_FOR_IT], {3}, names_line=False),
    Fault("stage_kill", [r"rank V (is dead|was killed|.*SIGKILL)", rf"rank V was {IN_THE_STAGE}", WAITS_FOR_IT], {137, 3},
          names_line=False),
]}


def collective_line():
    """The line of fault_rank.cpp that reports must name."""
    source = (Path(__file__).parent / "fault_rank.cpp").read_text().splitlines()
    return next(number for number, text in enumerate(source, 1) if "the line that reports must name" in text)


@dataclasses.dataclass
class Outcome:
    exit_code: int | None
    text: str
    seconds_to_notice: float | None
    seconds_to_end: float | None
    faults: list             # sentences; empty when all is as it should be


class Shot:
    """Sends a signal to a rank, some time after it has said which process it is."""

    def __init__(self, victim, number, delay):
        # From the line's beginning: the launcher repeats the last lines of a rank that failed.
        says = r"fault at [\d.]+ in" if number == signal.SIGCONT else rf"rank {victim} of generation \d+ is"
        self.pattern = re.compile(rf"^\[rank {victim}\] {says} process (\d+)")
        self.number = number
        self.delay = delay
        self.time = None

    def __call__(self, line):
        if found := self.pattern.search(line):
            threading.Timer(self.delay, self.fire, [int(found.group(1))]).start()

    def fire(self, pid):
        self.time = time.monotonic()
        os.kill(pid, self.number)


def judge(fault, victim, ranks, job, exit_code, begin):
    text = job.text()
    patterns = [re.compile(pattern.replace("rank V", f"rank {victim}").replace("of N", f"of {ranks}")
                           .replace(r"stage V\+1", f"stage {victim + 1}").replace("stage V", f"stage {victim}"))
                for pattern in fault.says]
    flat = re.sub(r"\n(\[[^]]*\])? *", " ", text)  # a report breaks its lines
    noticed = job.first(patterns[0])
    problems = []
    if begin is None:
        problems.append("the victim never came to its fault")
    for pattern in patterns:
        if not pattern.search(text) and not pattern.search(flat):
            problems.append(f"nothing matches {pattern.pattern!r}")
    if fault.names_line and not re.search(rf"fault_rank\.cpp:{collective_line()}\b", text):
        problems.append("no report names the line of the collective")
    if exit_code not in fault.exit_codes:
        problems.append(f"exit code {exit_code}, expected one of {sorted(fault.exit_codes)}")
    seconds = noticed - begin if noticed and begin else None
    if seconds is not None and seconds > NOTICED_WITHIN:
        problems.append(f"noticed after {seconds:.1f} s, the bar is {NOTICED_WITHIN} s")
    if not fault.ends and f"rank {victim} is done" not in text:
        problems.append("a rank that was only slow was ended")
    if left := job.survivors():
        problems.append(f"processes {left} outlive the job")
        job.kill()
    ended = job.lines[-1][0] - begin if job.lines and begin else None
    return Outcome(exit_code, text, seconds, ended, problems)


def announced(job):
    found = re.search(r"fault at (\d+\.\d+)", job.text())
    return float(found.group(1)) if found else None


def run_fault(tessera, program, name, victim, backend, ranks=RANKS, delay=0.0):
    """One job under `tessera run`."""
    fault = {**FAULTS, **STAGE_FAULTS}[name]
    with tempfile.TemporaryDirectory() as folder:
        job = Job([tessera, "run", "--nproc-per-node", ranks, "--log-dir", folder, "--",
                   program, "steady" if fault.is_shot() else name, victim, backend, COMMUNICATION_TIMEOUT])
        shot = None
        if fault.signal:
            shot = Shot(victim, fault.signal, delay if fault.is_shot() else DEBUGGED_FOR)
        exit_code = job.read_all(TIMEOUT, shot)
        return judge(fault, victim, ranks, job, exit_code, shot.time if fault.is_shot() else announced(job))
