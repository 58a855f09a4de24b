#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows the main job on a real model: one prompt, computed once, then served from the pool, from host
# memory, and from disk after the daemon was killed. Installs and builds its requirements, works in
# a temporary directory, and leaves nothing running.
#
# KVTIER_BUILD_DIRECTORY names a build to take daemon and library from instead of making one.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

if [[ -z ${KVTIER_BUILD_DIRECTORY:-} ]]; then
  ./tools/setup.sh --demo
  build_preset demo kvtierd kvtier
fi
build=$(realpath "${KVTIER_BUILD_DIRECTORY:-build/demo}")
export KVTIERD=$build/bin/kvtierd KVTIER_LIBRARY=$build/lib/libkvtier.so.0
export PYTHONPATH=$PWD/client/python PYTHONDONTWRITEBYTECODE=1

python=''
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import numpy, sys; assert sys.version_info >= (3, 9)' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [[ -z $python ]]; then
  echo 'quickstart: no python3 with numpy (Debian: python3-numpy)' >&2
  exit 1
fi

"$python" -m kvtier.demo --private | sed -u 's/^demo: ok/quickstart: ok/'
