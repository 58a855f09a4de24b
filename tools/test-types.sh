#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the types of the Python package with mypy, without the engines, all of the tree's Python for names that
# are missing or unused with ruff, and the layout of C++ with clang-format, whose versions differ. Seconds; the first
# run downloads 40 MB.
#
# KVTIER_TYPES_DIRECTORY: where all are kept; default ~/.cache/kvtier/types-VERSIONS.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly mypy=2.4.1 ruff=0.17.6 numpy=2.4.6 clang_format=14.0.6
readonly directory=${KVTIER_TYPES_DIRECTORY:-$HOME/.cache/kvtier/types-$mypy-$ruff-$clang_format}
if [[ ! -f $directory/installed ]]; then
  rm -rf "$directory"
  python3 -m venv "$directory"
  "$directory/bin/pip" install --quiet --disable-pip-version-check "mypy==$mypy" "ruff==$ruff" "numpy==$numpy" \
    "clang-format==$clang_format"
  touch "$directory/installed"
fi
"$directory/bin/ruff" check --quiet --no-cache --select E9,F,PLE client/python kernels tests tools
git ls-files -z '*.h' '*.hpp' '*.cc' '*.cu' '*.cuh' |
  xargs --null --max-args=64 "$directory/bin/clang-format" --dry-run --Werror
cd client/python
"$directory/bin/mypy" --cache-dir "$directory/cache" kvtier
