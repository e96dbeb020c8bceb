"""check_failure.py README EXIT_CODE COMMAND...: runs a command that must fail so, and print the README's last block.

Its lines must come in that order, with others between them.
"""

import subprocess
import sys

from check_output import expected_lines


def main() -> None:
    readme, exit_code, *command = sys.argv[1:]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=110)
    lines = iter(done.stdout.splitlines())
    missing = [line for line in expected_lines(readme) if line not in lines]
    if done.returncode != int(exit_code) or missing:
        sys.exit(f"exit code {done.returncode}, expected {exit_code}\nmissing: {missing}\n{done.stdout}")
    print("as promised")


if __name__ == "__main__":
    main()
