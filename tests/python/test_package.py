# SPDX-License-Identifier: Apache-2.0
"""The package as a user installs it."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from harness.paths import PACKAGE


def can_build() -> bool:
    """Whether pip and setuptools are there, so that nothing has to be fetched."""
    probe = "import setuptools, wheel, importlib.util as u; assert u.find_spec('pip')"
    probe += "; assert int(setuptools.__version__.split('.')[0]) >= 61"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0


def modules(package: pathlib.Path) -> set[pathlib.Path]:
    return {path.relative_to(package) for path in package.rglob("*.py")}


@unittest.skipUnless(can_build(), "pip, setuptools or wheel is missing")
class PackageTest(unittest.TestCase):
    def test_pip_installs_it_from_its_directory(self):
        with tempfile.TemporaryDirectory() as directory:
            # A copy: building leaves files in the source directory.
            source = pathlib.Path(directory) / "source"
            target = pathlib.Path(directory) / "target"
            ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
            shutil.copytree(PACKAGE, source, ignore=ignored)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation"]
            command += ["--no-deps", "--no-index", "--target", str(target), str(source)]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            installed = target / "kvtier"
            self.assertEqual(modules(installed), modules(PACKAGE / "kvtier"))
            self.assertIn(pathlib.Path("kernels/__init__.py"), modules(installed))
            self.assertTrue((installed / "py.typed").exists())
            # The headers are files there, not links into a source tree that may go.
            for header in ("include/kvtier.h", "include/kvtier.hpp", "kernels/include/prefill.h"):
                self.assertFalse((installed / header).is_symlink())
                self.assertEqual(
                    (installed / header).read_bytes(), (PACKAGE / "kvtier" / header).read_bytes()
                )
            code = "from kvtier import Miss, kernels; print(Miss.POOL_FULL.name)"
            done = subprocess.run(
                [sys.executable, "-c", code],
                env={"PYTHONPATH": str(target)},
                cwd=directory,
                capture_output=True,
                text=True,
            )
            self.assertEqual(done.stdout, "POOL_FULL\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
