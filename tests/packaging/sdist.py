# SPDX-License-Identifier: Apache-2.0
"""sdist.py SOURCE: the source distribution is the same bytes each time, also when it is made from
one that was unpacked; its content can be configured and has the headers that Python reads; and
parts that are missing without git are named."""

import email
import hashlib
import pathlib
import subprocess
import sys
import tarfile
import tempfile

SOURCE = pathlib.Path(sys.argv[1])
URL = "https://localhost/kvtier"
VERSION = (SOURCE / "VERSION").read_text().strip()
BUILD = "import build_backend, sys; print(build_backend.build_sdist(sys.argv[1]))"


def expect(held: bool, what: str) -> None:
    if not held:
        sys.exit(f"FAILED: {what}")


def attempt(
    command: list[str], directory: pathlib.Path, path: str = "/usr/local/bin:/usr/bin:/bin"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False,
        env={"PATH": path, "SOURCE_DATE_EPOCH": "1000000000", "KVTIER_URL": URL,
             "PYTHONPATH": "tools/packaging", "PYTHONDONTWRITEBYTECODE": "1"},
    )


def run(command: list[str], directory: pathlib.Path) -> str:
    done = attempt(command, directory)
    expect(done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


with tempfile.TemporaryDirectory() as scratch:
    work = pathlib.Path(scratch)
    digests = []
    tree = SOURCE
    for number in range(2):
        made = work / str(number)
        made.mkdir()
        name = run([sys.executable, "-c", BUILD, str(made)], tree).strip()
        expect(name == f"kvtier-{VERSION}.tar.gz", f"it is called {name}")
        digests.append(hashlib.sha256((made / name).read_bytes()).hexdigest())
        with tarfile.open(made / name) as archive:
            members = archive.getmembers()
            expect(all(one.isfile() for one in members), "something is no file")
            archive.extractall(made)
        tree = made / f"kvtier-{VERSION}"
        expect((tree / "client/python/kvtier/include/kvtier.h").is_file(), "headers are missing")
        metadata = email.message_from_string((tree / "PKG-INFO").read_text())
        expect(metadata["Version"] == VERSION, "the version in PKG-INFO")
        expect("daemon" in metadata["Summary"], "PKG-INFO does not say that the daemon is in it")
        for field in ("Author", "License-Expression", "Keywords", "Classifier", "Requires-Dist"):
            expect(bool(metadata[field]), f"PKG-INFO has no {field}")
        expect(metadata["Project-URL"] == f"Repository, {URL}", "PKG-INFO does not say where the tree is published")
        expect("kvtierd --dev" in metadata.get_payload(), "PKG-INFO has no description")
    expect(digests[0] == digests[1], "two of them differ")
    # An interpreter by its path, and no program to be found.
    without_git = attempt([sys.executable, "-c", BUILD, str(work)], tree, str(work))
    expect(without_git.returncode == 0, f"a tree that was unpacked needs git: {without_git.stderr}")
    if (SOURCE / ".git").exists():
        without_git = attempt([sys.executable, "-c", BUILD, str(work)], SOURCE, str(work))
        expect(without_git.returncode != 0, "a checkout was packed without git")
        expect("install git" in without_git.stderr, f"not said: {without_git.stderr}")
        expect("Traceback" not in without_git.stderr, "a traceback instead of a message")
    run(["cmake", "--preset", "release", "-DKVTIER_BUILD_TESTS=OFF", "-DKVTIER_CUDA=OFF"], tree)
print("ok")
