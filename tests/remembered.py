"""Which tests passed before, exactly as they are now: see Remembered."""

import functools
import hashlib
import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path

DAYS = 30  # that an outcome is kept after it was last asked for


def cache_folder():
    """$XDG_CACHE_HOME/tessera/passed_tests; ~/.cache when that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessera" / "passed_tests"


@functools.cache
def digest_of_file(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def machine():
    """A test that passed may fail on another processor or kernel."""
    flags = re.search(r"^flags.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return [platform.machine(), platform.release(), os.cpu_count(), flags and flags.group()]


class Remembered:
    """Keeps, for each set of tests that passed, a digest of all that their outcome depends on: the bytes of the program
    and of every library that it loads, LibTorch's included, the files that the tests read, their names, their
    environment and the machine."""

    VARIABLES = ("TESSERA_", "OMP_", "MKL_", "TORCH_", "ATEN_", "GTEST_")  # that tests or libraries may heed

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.libraries_file = self.folder / "libraries.json"
        self.known_libraries = self._read_libraries()
        self._forget_old()

    def key(self, program, filters, environment, inputs):
        """`inputs`: files, or folders that stand for all files in them."""
        variables = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(self.VARIABLES)]
        parts = [digest_of_file(program), self._libraries_of(program), sorted(filters), sorted([*environment, *variables]),
                 [self._digest_of_input(Path(path)) for path in sorted(inputs)], machine()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def has(self, key):
        file = self.folder / key
        if not file.exists():
            return False
        file.touch()
        return True

    def add(self, key):
        (self.folder / key).touch()

    def save(self):
        unfinished = self.folder / f"libraries.{os.getpid()}"
        unfinished.write_text(json.dumps(self.known_libraries))
        unfinished.replace(self.libraries_file)

    @staticmethod
    def _digest_of_input(path):
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        return [[str(file.relative_to(path)), digest_of_file(file)] for file in files]

    def _libraries_of(self, program):
        """What the dynamic loader would load, each with its digest."""
        printed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        return sorted([Path(path).name, self._digest_of_library(path)] for path in re.findall(r"(/\S+) \(0x", printed))

    def _digest_of_library(self, path):
        """LibTorch has half a gigabyte: read again only when the file is another one."""
        status = os.stat(path)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
        known = self.known_libraries.get(path)
        if known is None or known[0] != stamp:
            known = self.known_libraries[path] = [stamp, digest_of_file(path)]
        return known[1]

    def _read_libraries(self):
        try:
            return json.loads(self.libraries_file.read_text())
        except (OSError, ValueError):
            return {}

    def _forget_old(self):
        oldest = time.time() - DAYS * 24 * 3600
        for file in self.folder.iterdir():
            if file.stat().st_mtime < oldest:
                file.unlink(missing_ok=True)
