"""Two network namespaces of this machine, joined by a link. Needs root."""

import os
import subprocess
from pathlib import Path

PREFIX = "tessera-net-"


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def remove_leftovers():
    """Removes our namespaces that killed runs left: those named after a process that no longer exists."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and not Path(f"/proc/{owner}").exists():
            run("ip", "netns", "delete", name)


class TwoNetworks:
    """`with TwoNetworks() as link:` makes both; leaving the block removes them and the link."""

    interface = "link0"

    def __init__(self, shape=()):
        """`shape` are words for `tc qdisc add`, for both directions; without any the link is as fast as memory."""
        self.names = [f"{PREFIX}{os.getpid()}-{node}" for node in (0, 1)]
        self.shape = list(shape)
        self.made = []

    @staticmethod
    def address(node):
        return f"10.231.77.{node + 1}"

    def inside(self, node):
        """The words to put before a command so that it runs on a node."""
        return ["ip", "netns", "exec", self.names[node]]

    def cut(self):
        """From now on packets are lost, without an error for either side."""
        run("ip", "-n", self.names[1], "link", "set", self.interface, "down")

    def __enter__(self):
        remove_leftovers()
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
                self.made.append(name)
            # Made inside the namespaces, so the machine's own network has neither the link nor its addresses.
            first, second = self.names
            run("ip", "link", "add", self.interface, "netns", first, "type", "veth", "peer", "name", self.interface,
                "netns", second)
            for node, name in enumerate(self.names):
                run("ip", "-n", name, "address", "add", f"{self.address(node)}/24", "dev", self.interface)
                run("ip", "-n", name, "link", "set", "lo", "up")
                run("ip", "-n", name, "link", "set", self.interface, "up")
                if self.shape:
                    run("tc", "-n", name, "qdisc", "add", "dev", self.interface, "root", *self.shape)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        while self.made:
            run("ip", "netns", "delete", self.made.pop())
