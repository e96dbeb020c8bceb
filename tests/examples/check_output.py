"""check_output.py README COMMAND...: runs the command and compares its lines with the README's last expected block.

Ranks print in any order, so lines are compared as a multiset. The prefix that `tessera run` gives them is taken off.
"""

import re
import subprocess
import sys
from pathlib import Path


def expected_lines(readme: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", Path(readme).read_text(), re.MULTILINE | re.DOTALL)
    blocks = [text for language, text in fenced if not language]
    if not blocks:
        sys.exit(f"{readme} has no block of expected output")
    return blocks[-1].splitlines()


def main() -> None:
    readme, *command = sys.argv[1:]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    found = sorted(re.sub(r"^\[rank \d+\] ", "", line) for line in done.stdout.splitlines())
    expected = sorted(expected_lines(readme))
    if done.returncode != 0 or found != expected:
        sys.exit(f"exit code {done.returncode}\nexpected {expected}\nfound    {found}\n{done.stderr}")
    print("as promised")


if __name__ == "__main__":
    main()
