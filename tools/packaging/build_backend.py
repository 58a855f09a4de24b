# SPDX-License-Identifier: Apache-2.0
"""Makes a wheel or a source distribution of the whole tree for pip and build (PEP 517). A wheel is what
build-wheel.sh makes. A source distribution holds the files that git knows, links replaced by what they
name, and is the same bytes whenever it is made from one commit. Both have the metadata of pyproject.toml."""

from __future__ import annotations

import gzip
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from typing import Any

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# A tree that was unpacked may have these; the distribution does not.
_NOT_PACKED = {"build", "__pycache__", ".git"}
# How setuptools packs what build-wheel.sh has put together.
_SETUPTOOLS = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

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
            _add(archive, f"{root}/PKG-INFO", metadata(version).encode(), 0o644, epoch)
    return path.name


def metadata(version: str) -> str:
    """Returns the PKG-INFO of the source distribution, which PyPI shows and pip reads."""
    project = _toml(SOURCE / "pyproject.toml")["project"]
    (author,) = (one["name"] for one in project["authors"])
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", project["name"]),
        ("Version", version),
        ("Summary", project["description"]),
        ("Author", author),
        ("License-Expression", project["license"]),
        *(("Project-URL", f"{label}, {url}") for label, url in _urls().items()),
        ("Keywords", ",".join(project["keywords"])),
        *(("Classifier", one) for one in project["classifiers"]),
        ("Requires-Python", project["requires-python"]),
        ("Description-Content-Type", "text/markdown"),
        *(("Requires-Dist", one) for one in project["dependencies"]),
    ]
    for extra, needs in project["optional-dependencies"].items():
        fields.append(("Provides-Extra", extra))
        fields += [("Requires-Dist", f'{one}; extra == "{extra}"') for one in needs]
    readme = (SOURCE / project["readme"]).read_text()
    return "".join(f"{name}: {value}\n" for name, value in fields) + "\n" + readme


def wheel_project() -> str:
    """Returns the pyproject.toml with which setuptools packs a wheel: this tree's project, with the files that
    client/python/pyproject.toml names."""
    project = (SOURCE / "pyproject.toml").read_text()
    project = project[project.index("[project]"):]
    readme = _toml(SOURCE / "pyproject.toml")["project"]["readme"]
    project = project.replace(f'"{readme}"', '"README.md"')
    client = (SOURCE / "client/python/pyproject.toml").read_text()
    urls = "".join(f'{label} = "{url}"\n' for label, url in _urls().items())
    urls = f"\n[project.urls]\n{urls}" if urls else ""
    return _SETUPTOOLS + project + urls + "\n" + client[client.index("[tool.setuptools.dynamic]"):]


def _urls() -> dict[str, str]:
    """Returns the links of the metadata. The tree does not know where it is published, so KVTIER_URL does."""
    repository = os.environ.get("KVTIER_URL", "").rstrip("/")
    if not repository:
        return {}
    changelog = f"{repository}/blob/main/CHANGELOG.md"
    return {"Repository": repository, "Changelog": changelog, "Issues": f"{repository}/issues"}


def _toml(path: pathlib.Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(path.read_text())


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
    """Returns git's answer; None where the tree is no checkout. In a checkout only git knows which files
    belong to the tree: without its answer, whatever lies about would be packed."""
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
