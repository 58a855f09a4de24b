# SPDX-License-Identifier: Apache-2.0
"""Finding libkvtier, and what the package's declarations say of it."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import kvtier
from harness.c_layout import COMPILER, declared_functions, differences, structures
from harness.paths import PACKAGE, SOURCE
from kvtier import _abi, _library


def run_python(code, **environment):
    """Runs `code` in an interpreter of its own; None removes a variable."""
    merged = {**os.environ, "PYTHONPATH": str(PACKAGE), **environment}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
    )


class LibraryTest(unittest.TestCase):
    def test_package_and_library_are_of_one_version(self):
        self.assertEqual(kvtier.library_version(), kvtier.__version__)
        self.assertIn(f'version = "{kvtier.__version__}"', (PACKAGE / "pyproject.toml").read_text())

    def test_importing_loads_nothing(self):
        done = run_python(
            "import kvtier; print('imported')", KVTIER_LIBRARY="/nowhere/libkvtier.so"
        )
        self.assertEqual((done.stdout, done.returncode), ("imported\n", 0), done.stderr)

    def test_a_named_library_that_is_not_there_is_an_error_that_names_it(self):
        done = run_python(
            "import kvtier\n"
            "try: kvtier.library_version()\n"
            "except kvtier.LibraryNotFoundError as error: print(error)",
            KVTIER_LIBRARY="/nowhere/libkvtier.so",
        )
        self.assertIn("/nowhere/libkvtier.so", done.stdout)

    def test_a_library_beside_the_package_is_found_before_the_systems(self):
        with tempfile.TemporaryDirectory() as directory:
            copy = pathlib.Path(directory) / "kvtier"
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PACKAGE / "kvtier", copy, ignore=ignore)
            library = _library.load()._name
            (copy / _library.LIBRARY_NAME).symlink_to(pathlib.Path(library).resolve())
            done = run_python(
                "from kvtier import _library; print(_library.load()._name)",
                KVTIER_LIBRARY=None,
                PYTHONPATH=directory,
            )
            self.assertEqual(done.stdout.strip(), str(copy / _library.LIBRARY_NAME), done.stderr)

    def test_every_function_of_the_headers_is_declared(self):
        names = ("kvtier.h", "kvtier_sequence.h", "kvtier_attention.h")
        headers = [SOURCE / "client/include/kvtier" / name for name in names]
        functions = declared_functions([header.read_text() for header in headers], "KVT_API")
        self.assertEqual(functions, set(_abi.PROTOTYPES))

    @unittest.skipUnless(COMPILER, "no C++ compiler")
    def test_every_structure_is_laid_out_as_in_the_header(self):
        self.assertGreaterEqual(len(structures(_abi)), 20)
        self.assertEqual(differences(_abi, "kvtier/kvtier.h", "client/include"), "")

    def test_the_enumerations_have_the_librarys_names(self):
        library = _library.load()
        for status in kvtier.Status:
            self.assertEqual(library.kvt_status_name(status).decode().upper(), status.name)
        for miss in kvtier.Miss:
            self.assertEqual(library.kvt_miss_name(miss).decode().upper(), miss.name)


class ErrorsTest(unittest.TestCase):
    def test_every_status_has_an_exception_of_its_own(self):
        from kvtier.errors import error_of

        kinds = {type(error_of(status, "reason")) for status in kvtier.Status if status}
        self.assertEqual(len(kinds), len(kvtier.Status) - 1)
        self.assertNotIn(kvtier.KvtierError, kinds)

    def test_exceptions_are_pythons_own_kinds_too(self):
        for kind, base in (
            (kvtier.InvalidArgumentError, ValueError),
            (kvtier.NotFoundError, LookupError),
            (kvtier.PermissionDeniedError, PermissionError),
            (kvtier.UnavailableError, ConnectionError),
            (kvtier.TimedOutError, TimeoutError),
        ):
            self.assertTrue(issubclass(kind, base))

    def test_an_exception_says_what_happened_and_survives_pickling(self):
        import pickle

        error = kvtier.TimedOutError(kvtier.Status.TIMEOUT, "load_timeout", "3 of 4 blocks")
        for one in (error, pickle.loads(pickle.dumps(error))):
            self.assertEqual(str(one), "timeout: load_timeout (3 of 4 blocks)")
            self.assertEqual(one.reason, "load_timeout")
            self.assertIsNone(one.errno)

    def test_numbers_of_a_newer_library_are_kept(self):
        self.assertEqual((int(kvtier.Miss(77)), kvtier.Miss(77).name), (77, "REASON_77"))
        self.assertEqual((int(kvtier.Status(99)), kvtier.Status(99).name), (99, "STATUS_99"))


if __name__ == "__main__":
    unittest.main()
