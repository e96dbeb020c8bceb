"""Which files differ from a commit: for the tools that can leave the others out."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def changed_files(base):
    """Those that git knows, and those that nobody has added yet."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()

    return {ROOT / name for name in git("diff", "--name-only", base, "--") + git("ls-files", "-o", "--exclude-standard")}
