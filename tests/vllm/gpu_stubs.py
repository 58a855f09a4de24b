#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes stand-ins for the GPU libraries that PyPI's torch is linked with.

    gpu_stubs.py SITE_PACKAGES OUTPUT_DIRECTORY

torch computes on the CPU without them, but the dynamic linker wants each library that it names and
each symbol that it takes from there. The stubs have those names and symbols, with their versions,
and every function returns an error. Put OUTPUT_DIRECTORY into LD_LIBRARY_PATH. Needs cc, nm and
readelf.
"""

import pathlib
import re
import subprocess
import sys
from collections import defaultdict

# Libraries of CUDA's toolkit by their names. The driver, libcuda.so.1, is opened at run time only.
GPU_LIBRARY = re.compile(r"lib(cu|nv|nccl)(?!da\.so)")
# Symbols without a version do not say which library they are from; these are the toolkit's.
GPU_SYMBOL = re.compile(r"(__)?(cu|nv|nccl)[A-Za-z]*[A-Z_]")
# cudaErrorUnknown, and not a success of any other of the libraries.
ERROR = 999


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Wanted:
    """The symbols that the libraries of torch need from libraries that are not there.

    versions: by library, then by version, the names of symbols; unversioned: those of no library in
    particular.
    """

    def __init__(self, site_packages):
        objects = [*site_packages.glob("torch/lib/*.so*"), *site_packages.glob("torch/_C*.so")]
        self._present = {path.name for path in objects}
        self._defined = set()
        self._undefined = set()
        self._library_of_version = {}
        self.versions = defaultdict(lambda: defaultdict(set))
        for path in objects:
            self._read(path)
        self.unversioned = set()
        for symbol in self._undefined:
            name, _, version = symbol.partition("@")
            if version in self._library_of_version:
                self.versions[self._library_of_version[version]][version].add(name)
            elif not version and name not in self._defined and GPU_SYMBOL.match(name):
                self.unversioned.add(name)

    def _read(self, path):
        for line in output_of("readelf", "--wide", "--dynamic", path).splitlines():
            needed = re.search(r"\(NEEDED\).*\[(.+)\]", line)
            if needed and self._is_missing(needed[1]):
                self.versions[needed[1]]  # noqa: B018 - a library may be named and not used
        library = ""
        for line in output_of("readelf", "--wide", "--version-info", path).splitlines():
            library = (re.findall(r"File: (\S+)", line) or [library])[0]
            version = re.search(r"Name: (\S+) +Flags", line)
            if version and self._is_missing(library):
                self._library_of_version[version[1]] = library
        for line in output_of("nm", "--dynamic", path).splitlines():
            *_, kind, symbol = line.split()
            if kind in "Uw":
                self._undefined.add(symbol.replace("@@", "@"))
            else:
                self._defined.add(symbol.partition("@")[0])

    def _is_missing(self, library):
        return GPU_LIBRARY.match(library) and library not in self._present


def make_stub(path, versions, unversioned):
    """One shared library with these symbols."""
    names = sorted(set(unversioned).union(*versions.values()))
    source, script = path.with_suffix(".c"), path.with_suffix(".map")
    source.write_text("".join(f"int {name}(void) {{ return {ERROR}; }}\n" for name in names))
    script.write_text(
        "".join(
            f"{version} {{ global: {' '.join(f'{name};' for name in sorted(members))} }};\n"
            for version, members in sorted(versions.items())
        )
    )
    command = ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{path.name}", "-o", path, source]
    if versions:
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True)
    source.unlink()
    script.unlink()


def main():
    site_packages, output = map(pathlib.Path, sys.argv[1:])
    output.mkdir(parents=True, exist_ok=True)
    wanted = Wanted(site_packages)
    # A library without versions of its own takes the symbols that name none.
    plain = next(name for name, versions in sorted(wanted.versions.items()) if not versions)
    for name, versions in sorted(wanted.versions.items()):
        make_stub(output / name, versions, wanted.unversioned if name == plain else ())
    print(f"{len(wanted.versions)} stubs of GPU libraries in {output}")


if __name__ == "__main__":
    main()
