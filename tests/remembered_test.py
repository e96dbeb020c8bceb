"""A test that passed runs again when anything that its outcome depends on has changed."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import remembered
from remembered import Remembered


class RememberedTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.program = self.folder / "program"
        shutil.copy(shutil.which("true"), self.program)
        self.input = self.folder / "inputs" / "deep" / "file"
        self.input.parent.mkdir(parents=True)
        self.input.write_text("one")

    def key(self, filters=("A.B", "A.C"), environment=("X=1",)):
        remembered.digest_of_file.cache_clear()  # another run
        memory = Remembered(self.folder / "cache")
        found = memory.key(str(self.program), list(filters), list(environment), [str(self.input.parents[1])])
        memory.save()
        return found

    def test_the_same_is_remembered_by_another_run(self):
        key = self.key()
        Remembered(self.folder / "cache").add(key)
        self.assertTrue(Remembered(self.folder / "cache").has(self.key()))

    def test_nothing_is_remembered_that_did_not_pass(self):
        self.assertFalse(Remembered(self.folder / "cache").has(self.key()))

    def test_another_byte_of_the_program_makes_it_another(self):
        key = self.key()
        with open(self.program, "ab") as file:
            file.write(b"\0")
        self.assertNotEqual(self.key(), key)

    def test_another_content_name_or_number_of_inputs_makes_it_another(self):
        keys = [self.key()]
        self.input.write_text("two")
        keys.append(self.key())
        self.input.rename(self.input.parent / "other")
        keys.append(self.key())
        self.input.write_text("two")
        keys.append(self.key())
        self.assertEqual(len(set(keys)), 4)

    def test_another_set_of_tests_or_environment_makes_it_another(self):
        keys = {self.key(), self.key(filters=["A.B"]), self.key(environment=["X=2"]), self.key(environment=[])}
        with mock.patch.dict(os.environ, {"TESSERA_SOMETHING": "1"}):
            keys.add(self.key())
        self.assertEqual(len(keys), 5)

    def test_another_library_makes_it_another_though_its_name_and_size_are_the_same(self):
        library = self.folder / "libpart.so"
        source = self.folder / "part.c"
        for value in (1, 2):
            source.write_text(f"int part(void) {{ return {value}; }}\n")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
            if value == 1:
                (self.folder / "main.c").write_text("int part(void); int main(void) { return part() - 1; }\n")
                subprocess.run(["cc", "-o", self.program, self.folder / "main.c", "-L", self.folder, "-lpart",
                                f"-Wl,-rpath,{self.folder}"], check=True)
                size, key = library.stat().st_size, self.key()
        self.assertEqual(library.stat().st_size, size)
        self.assertNotEqual(self.key(), key)

    def test_another_machine_makes_it_another(self):
        key = self.key()
        with mock.patch.object(remembered, "machine", lambda: ["another"]):
            self.assertNotEqual(self.key(), key)

    def test_what_nobody_asked_for_in_a_month_is_forgotten(self):
        memory = Remembered(self.folder / "cache")
        memory.add("old")
        os.utime(self.folder / "cache" / "old", (0, 0))
        self.assertFalse(Remembered(self.folder / "cache").has("old"))

    def test_a_damaged_list_of_libraries_is_made_anew(self):
        key = self.key()
        (self.folder / "cache" / "libraries.json").write_text("{")
        self.assertEqual(self.key(), key)


if __name__ == "__main__":
    unittest.main()
