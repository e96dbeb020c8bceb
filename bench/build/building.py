"""Builds in folders of their own, without ccache, and what they cost."""

import contextlib
import dataclasses
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from harness.machine import own_seconds


@dataclasses.dataclass
class Cost:
    processor: float = 0.0  # seconds, of all processes together
    wall: float = 0.0
    num_objects: int = 0  # compiled, without precompiled headers

    def __add__(self, other):
        return Cost(self.processor + other.processor, self.wall + other.wall, self.num_objects + other.num_objects)


class Building:
    """One build folder, which at first has only what CMake writes."""

    def __init__(self, root, folder, preset, *settings):
        self.folder = folder
        self.environment = {**os.environ, "CCACHE_DISABLE": "1"}
        self._run(["cmake", "--preset", preset, "-B", folder, "-Wno-dev", *settings], cwd=root)

    def build(self, *targets):
        began, before = time.monotonic(), own_seconds()
        output = self._run(["ninja", "-C", self.folder, "-j", str(os.cpu_count()), *targets])
        return Cost(own_seconds() - before, time.monotonic() - began, len(compiled_in(output)))

    def objects(self):
        """The objects that the whole build makes and that do not exist yet, and separately the precompiled headers."""
        listing = self._run(["ninja", "-C", self.folder, "-n"])
        return compiled_in(listing), [name for name in names_in(listing) if is_precompiled(name)]

    def _run(self, command, cwd=None):
        done = subprocess.run(command, cwd=cwd, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed:\n" + done.stdout[-3000:])
        return done.stdout


def names_in(output):
    return re.findall(r"Building CXX object (\S+)", output)


def compiled_in(output):
    return [name for name in names_in(output) if not is_precompiled(name)]


def is_precompiled(name):
    return name.endswith((".gch", ".pch"))


@contextlib.contextmanager
def folders(context):
    """A temporary folder on the disk of the other builds."""
    with tempfile.TemporaryDirectory(dir=context.output) as name:
        yield Path(name)
