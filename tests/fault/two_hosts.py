"""What happens to hosts and to the network between them. Two hosts are two network namespaces."""

import re
import secrets
import sys
import tempfile
import threading
import time
from pathlib import Path

import faults
from job import Job

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from harness.ranks import free_port  # noqa: E402
from harness.two_networks import TwoNetworks  # noqa: E402

RANKS_PER_NODE = 2
PORT = 29500  # the namespaces are ours alone
ALL_WORK = re.compile(r"rank (\d+) of generation 0 is process")


class Node:
    """One launcher with its ranks."""

    def __init__(self, command, variables=None, timeout=faults.TIMEOUT):
        self.ranks_at_work = threading.Event()
        self.job = Job(command, variables)
        self.exit_code = None
        self.seen = set()
        self.reader = threading.Thread(target=self.read, args=[timeout])
        self.reader.start()

    def read(self, timeout):
        self.exit_code = self.job.read_all(timeout, self.look)
        self.ranks_at_work.set()  # or as far as they will ever get

    def look(self, line):
        if found := ALL_WORK.search(line):
            self.seen.add(found.group(1))
            if len(self.seen) == RANKS_PER_NODE:
                self.ranks_at_work.set()


def launch(tessera, program, backend, link, key, number):
    return [tessera, "run", "--nproc-per-node", RANKS_PER_NODE, "--nnodes", 2, "--node-rank", number,
            "--rdzv-endpoint", f"{link.address(0)}:{PORT}", "--secret-file", key, "--",
            program, "steady", 0, backend, faults.COMMUNICATION_TIMEOUT]


def on_two_hosts(tessera, program, backend, strike, expected):
    """`strike(link, nodes)` is what happens once all ranks work. `expected` maps a node to what it must say."""
    with tempfile.TemporaryDirectory() as folder, TwoNetworks() as link:
        key = Path(folder) / "key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        nodes = [Node(link.inside(number) + launch(tessera, program, backend, link, key, number)) for number in (0, 1)]
        for node in nodes:
            node.ranks_at_work.wait()
        time.sleep(0.3)
        begin = time.monotonic()
        strike(link, nodes)
        for node in nodes:
            node.reader.join()
        return judge(nodes, begin, expected)


def judge(nodes, begin, expected):
    problems = []
    times = []
    for number, patterns in expected.items():
        job = nodes[number].job
        for pattern in patterns:
            if not re.search(pattern, job.text()):
                problems.append(f"node {number}: nothing matches {pattern!r}")
        if (noticed := job.first(re.compile(patterns[0]))) is not None:
            times.append(noticed - begin)
        if nodes[number].exit_code != 3:
            problems.append(f"node {number}: exit code {nodes[number].exit_code}, expected 3")
    for number, node in enumerate(nodes):
        if left := node.job.survivors():
            problems.append(f"node {number}: processes {left} outlive the job")
            node.job.kill()
    slowest = max(times, default=None)
    if slowest is not None and slowest > faults.NOTICED_WITHIN:
        problems.append(f"noticed after {slowest:.1f} s, the bar is {faults.NOTICED_WITHIN} s")
    text = "\n".join(f"node {number} | {line}" for number, node in enumerate(nodes) for _, line in node.job.lines)
    ended = max(node.job.lines[-1][0] for node in nodes if node.job.lines) - begin
    return faults.Outcome(nodes[max(expected)].exit_code, text, slowest, ended, problems)


LINE = r"fault_rank\.cpp:\d+"
LOST_ZERO = [r"node 0 .*was lost", r"ranks 0,1 ", LINE]
LOST_ONE = [r"node 1 .*was lost|ranks 2,3 |rank [23] ", r"ranks? [23]", LINE]


def host_fails(tessera, program, backend):
    """The host that serves the job's store, its launcher and its ranks included."""
    def strike(link, nodes):
        link.cut()  # or its sockets would tell the others
        nodes[0].job.kill()

    return on_two_hosts(tessera, program, backend, strike, {1: LOST_ZERO})


def link_is_cut(tessera, program, backend):
    return on_two_hosts(tessera, program, backend, lambda link, nodes: link.cut(), {0: LOST_ONE, 1: LOST_ZERO})


PLAIN_LOOP = """
for rank in 0 1 2 3; do RANK=$rank LOCAL_RANK=$rank "$@" & pids="$pids $!"; done
for pid in $pids; do wait $pid || code=$?; done
exit $code
"""


def store_rank_is_killed(tessera, program, backend):
    """Without our launcher rank 0 serves the store."""
    place = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    job = Job(["bash", "-c", PLAIN_LOOP, "loop", program, "kill", 0, backend, faults.COMMUNICATION_TIMEOUT], place)
    exit_code = job.read_all(faults.TIMEOUT)
    fault = faults.Fault("store_rank", [r"the job's store, which rank V hosts, is lost", r"this rank is in \w+ #"], {3})
    return faults.judge(fault, 0, 4, job, exit_code, faults.announced(job))


IN_NAMESPACES = ("host", "cut")
FAULTS = {"host": host_fails, "cut": link_is_cut, "store_rank": store_rank_is_killed}


def run_fault(tessera, program, name, victim, backend):
    """Any fault of the table; those of hosts choose their victims themselves."""
    if name in FAULTS:
        return FAULTS[name](tessera, program, backend)
    return faults.run_fault(tessera, program, name, victim, backend)
