# SPDX-License-Identifier: Apache-2.0
"""needed_libraries.py LINKING FILE...: each library and program that is shipped asks the loader for no library
but those that ALLOWED has for it. LINKING is `static` for a build with KVTIER_STATIC, else `shared`.

An engine loads libkvtier beside libraries of its own, and programs run where the package of a library that
came in by accident is not installed. The linker accepts either without a word."""

import pathlib
import re
import subprocess
import sys

SYSTEM = {"ld-linux-x86-64", "libc", "libdl", "libgcc_s", "libm", "libpthread", "libresolv", "librt"}
RUNTIME = {"libstdc++"}
DISK = {"libboost_json", "libcrypto", "libfmt", "librocksdb", "liburing", "libxxhash"}
# The libraries that a file needs beside SYSTEM: in every build, and in one that links shared
# libraries.
ALLOWED = {
    "libkvtier": (set(), RUNTIME | {"libcrypto", "libfmt"}),
    "libkvtier_kernels": (set(), RUNTIME),
    "kvtier-cold-files": (set(), RUNTIME),
    "kvtier-cold-resp": (set(), RUNTIME | {"libhiredis"}),
    "kvtier-cold-s3": ({"libcrypto", "libcurl"}, RUNTIME),
    "kvtier-keeper": (set(), RUNTIME),
    "kvtierd": ({"libsystemd", "libxxhash"}, RUNTIME | DISK | {"libspdlog"}),
    "kvtierctl": ({"libkvtier", "libxxhash"}, RUNTIME | DISK),
}


def needed(path: str) -> set[str]:
    told = subprocess.run(["readelf", "--dynamic", "--wide", path], check=True, capture_output=True, text=True)
    if told.stderr:
        sys.exit(f"FAILED: readelf of {path}: {told.stderr}")
    return {name.split(".so")[0] for name in re.findall(r"\(NEEDED\).*\[(.+)\]", told.stdout)}


if sys.argv[1] not in ("shared", "static") or len(sys.argv) < 3:
    sys.exit(__doc__)
failures = []
for path in sys.argv[2:]:
    name = pathlib.Path(path).name.split(".so")[0]
    always, where_shared = ALLOWED[name]
    allowed = SYSTEM | always | (where_shared if sys.argv[1] == "shared" else set())
    if extra := sorted(needed(path) - allowed):
        failures.append(f"{name} needs {', '.join(extra)}")
if failures:
    sys.exit("FAILED: " + "; ".join(failures))
print(f"ok: {len(sys.argv) - 2} files")
