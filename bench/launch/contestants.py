"""The same jobs under `tessera run` and under torchrun."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "fault"))

import faults  # noqa: E402,F401
import job  # noqa: E402,F401
import two_hosts  # noqa: E402,F401


def tessera(context):
    return context.build / "apps" / "tessera" / "tessera"


def fault_rank(context):
    return context.build / "tests" / "fault" / "fault_rank"


def torchrun(context, ranks, *options):
    return [context.python, "-m", "torch.distributed.run", "--nproc-per-node", ranks, *options]


def peer_rank(context):
    return context.root / "bench" / "peers" / "fault_rank.py"


# By default Gloo resolves the host's name, which may have no address on a machine without a network.
PEER_VARIABLES = {"GLOO_SOCKET_IFNAME": "lo"}
