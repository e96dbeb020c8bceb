"""Which files differ from a commit, for tools that can skip the others."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def changed_files(base):
    """Tracked files that differ from `base`, and untracked ones."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()

    return {ROOT / name for name in git("diff", "--name-only", base, "--") + git("ls-files", "-o", "--exclude-standard")}
