"""Two network namespaces of this machine, joined by a link of a known rate. Needs the rights of root."""

import os
import subprocess
from pathlib import Path

PREFIX = "tessera-bench-"
RATE = "1 Gbit/s"
# One millisecond at the rate: above the largest packet before segmentation (64 KB), and far below what a sample sends.
SHAPE = ["tbf", "rate", "1gbit", "burst", "128kb", "latency", "50ms"]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def remove_leftovers():
    """Of runs that were killed: named by us, and by a process that is no more."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and not Path(f"/proc/{owner}").exists():
            run("ip", "netns", "delete", name)


class ShapedLink:
    """`with ShapedLink() as link:` makes both; leaving removes them, and the link with them."""

    interface = "link0"

    def __init__(self):
        self.names = [f"{PREFIX}{os.getpid()}-{node}" for node in (0, 1)]
        self.made = []

    @staticmethod
    def address(node):
        return f"10.231.77.{node + 1}"

    def inside(self, node):
        """What goes before a command that shall run on a node."""
        return ["ip", "netns", "exec", self.names[node]]

    def __enter__(self):
        remove_leftovers()
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
                self.made.append(name)
            # Made inside the namespaces: the machine's own network never sees the link nor its addresses.
            first, second = self.names
            run("ip", "link", "add", self.interface, "netns", first, "type", "veth", "peer", "name", self.interface,
                "netns", second)
            for node, name in enumerate(self.names):
                run("ip", "-n", name, "address", "add", f"{self.address(node)}/24", "dev", self.interface)
                run("ip", "-n", name, "link", "set", "lo", "up")
                run("ip", "-n", name, "link", "set", self.interface, "up")
                run("tc", "-n", name, "qdisc", "add", "dev", self.interface, "root", *SHAPE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        while self.made:
            run("ip", "netns", "delete", self.made.pop())
