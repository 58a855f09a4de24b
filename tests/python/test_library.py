# SPDX-License-Identifier: Apache-2.0
"""Finding libkvtier, and the package's declarations of it."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

import kvtier
from harness.c_layout import COMPILER, declared_functions, differences
from harness.paths import PACKAGE, SOURCE
from kvtier import _cheader, _library


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
        names = (
            "", "_attention", "_groups", "_hints", "_hit_plan", "_kept_memory", "_region", "_sequence",
            "_tokens",
        )
        headers = [SOURCE / f"client/include/kvtier/kvtier{name}.h" for name in names]
        functions = declared_functions([header.read_text() for header in headers], "KVT_API")
        self.assertEqual(functions, set(_library.abi.functions))

    @unittest.skipUnless(COMPILER, "no C++ compiler")
    def test_every_structure_is_laid_out_as_in_the_header(self):
        self.assertGreaterEqual(len(_library.abi.structures), 20)
        self.assertEqual(differences(_library.abi, "kvtier/kvtier.h", "client/include"), "")

    def test_a_library_with_smaller_structures_is_refused_and_one_with_larger_is_not(self):
        def library(bytes_more):
            def init(structure):
                def write_size(memory):
                    size = ctypes.sizeof(structure) + bytes_more
                    ctypes.c_size_t.from_buffer(memory).value = size

                return write_size

            names = {f"{name}_init": init(kind) for name, kind in _library.abi.structures.items()}
            return types.SimpleNamespace(_name="libother.so", **names)

        _library.check_sizes(library(bytes_more=0))
        _library.check_sizes(library(bytes_more=8))
        with self.assertRaisesRegex(kvtier.LibraryNotFoundError, "libother.so is older"):
            _library.check_sizes(library(bytes_more=-8))

    def test_the_enumerations_have_the_librarys_names(self):
        library = _library.load()
        for status in kvtier.Status:
            self.assertEqual(library.kvt_status_name(status).decode().upper(), status.name)
        for miss in kvtier.Miss:
            self.assertEqual(library.kvt_miss_name(miss).decode().upper(), miss.name)


class HeaderTest(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "some.h"
            path.write_text(text)
            return _cheader.Header(path)

    def test_a_field_added_to_a_header_is_a_field_of_the_structure(self):
        header = self.read(
            "#define KVT_NAME_BYTES 72 /* with its end */\n"
            "typedef uint8_t kvt_kind; enum { KVT_KIND_ONE = 1, KVT_KIND_TWO = 2 };\n"
            "typedef struct kvt_some {\n"
            "  size_t size; /* a; comment { */\n"
            "  char name[KVT_NAME_BYTES];\n"
            "  const char*\n      text;\n"
            "  kvt_kind kind;\n"
            "  void (*call)(int32_t a);\n"
            "} kvt_some;\n"
            "KVT_API const kvt_some* kvt_get(void* const* list, kvt_some value);\n"
        )
        some = header.kvt_some
        self.assertEqual(
            [name for name, _ in some._fields_], ["size", "name", "text", "kind", "call"]
        )
        self.assertEqual((some.text.offset, some.kind.offset, ctypes.sizeof(some)), (80, 88, 104))
        self.assertEqual(header.enumeration("KVT_KIND_TWO"), {"ONE": 1, "TWO": 2})
        result, arguments = header.functions["kvt_get"]
        self.assertIs(result._type_, some)
        self.assertEqual(arguments, [ctypes.c_void_p, some])

    def test_what_is_not_understood_is_an_error_that_shows_it(self):
        for text in (
            "typedef union { int32_t a; float b; } kvt_either;",
            "typedef struct { int32_t a : 3; } kvt_bits;",
            "typedef struct { unheard_of a; } kvt_other;",
            "int32_t kvt_unmarked(void);",
        ):
            with self.assertRaisesRegex(ValueError, "either|a :|unheard_of|unmarked"):
                self.read(text)

    def test_a_name_that_no_header_has_is_an_attribute_error(self):
        with self.assertRaisesRegex(AttributeError, "kvt_nothing"):
            _library.abi.kvt_nothing


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
