"""check_resumed.py README LAUNCHER PROGRAM: trains on 2 ranks to step 200, goes on with 3, as the README shows it."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def lines_of(launcher, ranks, *command):
    done = subprocess.run([launcher, "run", "--nproc-per-node", str(ranks), "--", *command],
                          capture_output=True, text=True, timeout=110)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.splitlines()


def main():
    readme, launcher, program = sys.argv[1:]
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", Path(readme).read_text(), re.MULTILINE | re.DOTALL)
    expected = [text.splitlines() for language, text in fenced if not language]
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        found = [lines_of(launcher, 2, program, run, "200"), lines_of(launcher, 3, program, run)]
        steps = sorted(path.name for path in Path(run).iterdir())
    if found != expected or steps != ["step-00000350", "step-00000400"]:
        sys.exit(f"expected {expected}\nfound    {found}\nfolder   {steps}")
    print("as promised")


if __name__ == "__main__":
    main()
