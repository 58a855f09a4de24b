# SPDX-License-Identifier: Apache-2.0
"""The hooks that pip and build call (PEP 517) to make a wheel or a source distribution of the whole
tree. build-wheel.sh makes the wheel. A source distribution holds the files that git knows, links
replaced by their targets, and is the same bytes whenever it is made from one commit."""

from __future__ import annotations

import gzip
import io
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
from typing import Any

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# Names that an unpacked tree may have and that are not of the distribution.
_NOT_PACKED = {"build", "__pycache__", ".git"}
_METADATA = """Metadata-Version: 2.1
Name: kvtier
Version: {version}
Summary: KV cache of LLM inference in three tiers: daemon, client library and Python package
License: Apache-2.0
Requires-Python: >=3.9
"""


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([SOURCE / "tools/packaging/build-wheel.sh", directory], check=True)
        (made,) = pathlib.Path(directory).glob("*.whl")
        shutil.move(made, pathlib.Path(wheel_directory) / made.name)
    return made.name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    version = (SOURCE / "VERSION").read_text().strip()
    root = f"kvtier-{version}"
    epoch = _epoch()
    path = pathlib.Path(sdist_directory) / f"{root}.tar.gz"
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, epoch) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in _files():
                content = (SOURCE / name).read_bytes()
                executable = os.access(SOURCE / name, os.X_OK)
                _add(archive, f"{root}/{name}", content, 0o755 if executable else 0o644, epoch)
            metadata = _METADATA.format(version=version).encode()
            _add(archive, f"{root}/PKG-INFO", metadata, 0o644, epoch)
    return path.name


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int, epoch: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), mode, epoch
    archive.addfile(member, io.BytesIO(content))


def _files() -> list[str]:
    if (listed := _git("ls-files", "-z")) is not None:
        names = [name for name in listed.split("\0") if name]
        files = {name for name in names if (SOURCE / name).is_file()}
        for link in (SOURCE / name for name in names if (SOURCE / name).is_dir()):
            files.update(str(path.relative_to(SOURCE)) for path in link.iterdir() if path.is_file())
        return sorted(files)
    paths = (path.relative_to(SOURCE) for path in SOURCE.rglob("*") if path.is_file())
    packed = (path for path in paths if not _NOT_PACKED.intersection(path.parts))
    return sorted(str(path) for path in packed if str(path) != "PKG-INFO")


def _epoch() -> int:
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    told = _git("log", "-1", "--format=%ct")
    return int(told) if told and told.strip() else 315532800


def _git(*arguments: str) -> str | None:
    """The files that git lists in the tree; None where the tree is no checkout. In a checkout only
    git knows the files that belong to it: without its answer, whatever lies about would be packed.
    """
    if not (SOURCE / ".git").exists():
        return None
    command = ["git", *arguments]
    try:
        told = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise SystemExit(
            "kvtier: this source tree is a git checkout and git is not installed: install git, or build "
            "from an unpacked source distribution"
        ) from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"kvtier: {' '.join(command)} in {SOURCE}: {error.stderr.strip()}") from None
    return told.stdout
