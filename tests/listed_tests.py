"""The quick tests of a build, as ctest lists them."""

import dataclasses
import json
import os
import subprocess

TOGETHER = {"unit", "integration", "parity"}  # labels
FILTER = "--gtest_filter="


@dataclasses.dataclass
class Test:
    number: int
    name: str
    command: list
    properties: dict

    @property
    def filter(self):
        """What GoogleTest calls it; None: no test of GoogleTest."""
        return next((part.removeprefix(FILTER) for part in self.command[1:] if part.startswith(FILTER)), None)

    def is_of(self, module):
        return any(f"/tests/{module}/" in word for word in self.command)

    @property
    def label(self):
        return self.properties["LABELS"][0]

    @property
    def goes_together(self):
        starts_processes = self.command[0].endswith("process_tests")
        return self.filter is not None and not starts_processes and self.label in TOGETHER


def quick_tests(build, built_only=False):
    """As ctest lists them: the numbers are those that it takes, of all tests. `built_only`: without those of programs
    that are not there."""
    answer = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True)
    for number, test in enumerate(json.loads(answer.stdout)["tests"], 1):
        properties = {each["name"]: each["value"] for each in test["properties"]}
        if "slow" not in properties.get("LABELS", []) and ("command" in test or not built_only):
            yield Test(number, test["name"], test["command"], properties)


def environment_of(properties):
    return {**os.environ, **dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", []))}
