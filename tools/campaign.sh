#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the robustness campaign on the programs of a build: daemons and clients that are killed,
# damaged files and memory, power losses, simulations, fuzzers, a soak. See tools/campaign/__main__.py
# for the options. Needs no root, but to record writes without fusermount3; works in a temporary
# directory, and leaves nothing running.
#
# KVTIER_BUILD_DIRECTORY names the build to take the programs from; default: build/release.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

build=$(realpath "${KVTIER_BUILD_DIRECTORY:-$root/build/release}")
export KVTIER_BUILD_DIRECTORY=$build
export KVTIERD=$build/bin/kvtierd
export KVTIER_LIBRARY=$build/lib/libkvtier.so.0
export PYTHONPATH=$root/client/python:$root/tests/python
export PYTHONDONTWRITEBYTECODE=1

for python in "${KVTIER_PYTHON:-python3}" /usr/bin/python3; do
  if "$python" -c 'import numpy, sys; assert sys.version_info >= (3, 9)' 2>/dev/null; then
    exec "$python" "$root/tools/campaign" "$@"
  fi
done
echo 'campaign: no python3 with numpy (Debian: python3-numpy)' >&2
exit 2
