"""How soon each fault is noticed and the job ends, with ours and with torchrun and Gloo."""

import concurrent.futures
import re
import time

from harness.outcome import Outcome, Table, at_most
from harness.ranks import free_port
from harness.spread import median
from launch import contestants
from launch.contestants import PEER_VARIABLES, fault_rank, peer_rank, tessera, torchrun
from launch.contestants import faults as table
from launch.contestants import two_hosts

ROUNDS = 2
VICTIM = 2
CAP = 120          # seconds that the peer may take
PEERS_AT_A_TIME = 8  # they mostly wait
WHAT = {
    "kill": "SIGKILL", "stop": "SIGSTOP", "abort": "abort()", "throw": "an exception", "loop": "an infinite loop",
    "read": "a blocked read", "slow": "7 s of work (no fault)", "debug": "8 s in a debugger (no fault)",
    "exit": "exit(0) amid the job",
    "skip": "skips a collective", "operation": "another operation", "shape": "another shape",
    "dtype": "another dtype", "absent": "never starts", "store_rank": "rank 0, with the store, killed",
    "host": "the store's host fails", "cut": "the link is cut",
}
BACKENDS = {**{name: ("shm", "gloo") for name in WHAT}, "host": ("gloo",), "cut": ("gloo",)}
OURS_ALONE = "debug"  # torchrun has no limit that could be raised


def ours(context, name, backend):
    return two_hosts.run_fault(tessera(context), fault_rank(context), name, VICTIM, backend)


def seconds_until_over(job, begin, exit_code):
    if begin is None:
        raise RuntimeError("torchrun: the victim never came to its fault\n" + job.text()[-2000:])
    return None if exit_code is None else job.lines[-1][0] - begin


def peer_on_one_host(context, name):
    fault, victim = ("kill", 0) if name == "store_rank" else (name, VICTIM)
    job = contestants.job.Job(
        [*torchrun(context, table.RANKS, "--master-addr", "127.0.0.1", "--master-port", free_port()),
         peer_rank(context), fault, victim], PEER_VARIABLES)
    exit_code = job.read_all(CAP + 30)  # 30 s to reach the fault
    return result_of(job, table.announced(job), exit_code, victim)


def result_of(job, begin, exit_code, victim):
    seconds = seconds_until_over(job, begin, exit_code)
    # torchrun's own summary names the rank that it considers the root cause.
    named = re.search(r"Root Cause.*?rank\s+:\s+(\d+)", job.text(), re.DOTALL)
    return {"seconds": seconds, "exit_code": exit_code, "blames": int(named.group(1)) if named else None,
            "victim": victim}


def peer_on_two_hosts(context, name):
    with two_hosts.TwoNetworks() as link:
        nodes = []
        for number in (0, 1):
            command = [*link.inside(number), *torchrun(
                context, two_hosts.RANKS_PER_NODE, "--nnodes", 2, "--node-rank", number, "--master-addr",
                link.address(0), "--master-port", two_hosts.PORT), peer_rank(context), "steady", 0]
            nodes.append(two_hosts.Node(command, {"GLOO_SOCKET_IFNAME": link.interface}, CAP + 90))
        for node in nodes:
            if not node.ranks_at_work.wait(60) or len(node.seen) < two_hosts.RANKS_PER_NODE:
                raise RuntimeError("torchrun on two hosts did not start\n" + node.job.text()[-2000:])
        time.sleep(0.3)
        begin = time.monotonic()
        link.cut()
        if name == "host":
            nodes[0].job.kill()
        left = nodes if name == "cut" else nodes[1:]
        end = begin + CAP
        for node in left:
            node.reader.join(max(0.0, end - time.monotonic()))
        over = not any(node.reader.is_alive() for node in left)
        for node in nodes:
            node.job.kill()
            node.reader.join()
        seconds = max(node.job.lines[-1][0] for node in left) - begin if over else None
        return {"seconds": seconds, "exit_code": left[-1].exit_code if over else None, "blames": None, "victim": 0}


def peers(context):
    with concurrent.futures.ThreadPoolExecutor(PEERS_AT_A_TIME) as pool:
        running = {name: pool.submit(peer_on_one_host, context, name) for name in WHAT
                   if name not in two_hosts.IN_NAMESPACES and name != OURS_ALONE}
        figures = {name: one.result() for name, one in running.items()}
    for name in two_hosts.IN_NAMESPACES:
        figures[name] = peer_on_two_hosts(context, name)
    return figures


def shown(seconds):
    return "-" if seconds is None else f"{seconds:.1f}"


def peer_cell(figure):
    if figure is None:
        return "-"
    if figure["seconds"] is None:
        return f"> {CAP}"
    blames = figure["blames"]
    end = f"{figure['seconds']:.1f}"
    if figure["exit_code"] == 0:
        return end + ", exit code 0"
    if blames is None:
        return end
    return end + ("" if blames == figure["victim"] else f", blames rank {blames}")


def measure(context):
    context.settle()
    samples, problems = [], []
    for number in range(context.rounds or ROUNDS):
        for name in WHAT:
            for backend in BACKENDS[name]:
                outcome = ours(context, name, backend)
                samples.append({"round": number, "fault": name, "backend": backend,
                                "noticed": outcome.seconds_to_notice, "over": outcome.seconds_to_end,
                                "exit_code": outcome.exit_code, "problems": outcome.faults})
                problems += [f"{name} on {backend}: {problem}" for problem in outcome.faults]
    figures = peers(context)
    rows = []
    for name, what in WHAT.items():
        cells = []
        for backend in ("shm", "gloo"):
            mine = [one for one in samples if one["fault"] == name and one["backend"] == backend]
            noticed = [one["noticed"] for one in mine if one["noticed"] is not None]
            over = [one["over"] for one in mine if one["over"] is not None]
            cells.append(f"{shown(max(noticed, default=None))} / {shown(median(over) if over else None)}"
                         if mine else "")
        rows.append([what, *cells, peer_cell(figures.get(name))])
    noticed = [one["noticed"] for one in samples if one["noticed"] is not None]
    return Outcome(
        f"Faults of one of {table.RANKS} ranks: seconds until noticed (the slowest) / until the job was over (median)",
        tables=[Table(["what happens", "tessera run, shm", "tessera run, Gloo", "torchrun and Gloo, until over"], rows)],
        bars=[at_most("slowest notice of a fault, s", max(noticed, default=float("inf")), table.NOTICED_WITHIN),
              at_most("rows that named a wrong rank or line, left a process or ended with another code",
                      len(problems), 0, "{:d}")],
        notes=[f"{len(samples)} jobs of ours. torchrun has its defaults and is ended after {CAP} s.",
               "Calls of ours time out after 9 s here, which ends a loop and a blocked read.", *problems],
        samples=samples + [{"peer": "torchrun", "fault": name, **figure} for name, figure in figures.items()])
