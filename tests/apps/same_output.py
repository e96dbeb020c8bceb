"""same_output.py FILE COMMAND...: fails, with the difference, unless the command prints just what the file holds."""

import difflib
import subprocess
import sys
from pathlib import Path


def main() -> None:
    file, *command = sys.argv[1:]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50).stdout
    difference = list(difflib.unified_diff(Path(file).read_text().splitlines(), printed.splitlines(), file, "printed"))
    if difference:
        sys.exit("\n".join(difference) + f"\n{file} is out of date: write it anew with `tessera reference`")
    print("the same")


if __name__ == "__main__":
    main()
