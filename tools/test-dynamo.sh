#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the events of a kvtierd with the indexer of Dynamo's wheel, 80 MB, which it installs.
#
# KVTIER_DYNAMO_DIRECTORY: where it is kept; default ~/.cache/kvtier/dynamo-VERSION.
# KVTIER_BUILD_DIRECTORY: a build to take kvtierd and libkvtier from instead of making one.
# Arguments go to Python's unittest; without any, all tests run.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

readonly dynamo_version=1.6.1
readonly directory=${KVTIER_DYNAMO_DIRECTORY:-$HOME/.cache/kvtier/dynamo-$dynamo_version}

./tools/setup.sh
build=${KVTIER_BUILD_DIRECTORY:-build/release}
[[ -n ${KVTIER_BUILD_DIRECTORY-} ]] || build_preset release kvtierd kvtier
build=$(cd "$build" && pwd)
if [[ ! -f $directory/installed ]]; then
  rm -rf "$directory"
  # With the pip of the system, since Debian's venv brings none.
  python3 -m venv --without-pip "$directory"
  python3 -m pip --python "$directory/bin/python" install --quiet --disable-pip-version-check \
    "ai-dynamo-runtime==$dynamo_version" numpy==2.3.5
  touch "$directory/installed"
fi
echo "test-dynamo: Dynamo $dynamo_version, $build"
export PYTHONDONTWRITEBYTECODE=1
export KVTIERD=$build/bin/kvtierd KVTIER_LIBRARY=$build/lib/libkvtier.so.0
export PYTHONPATH=$PWD/client/python:$PWD/tests/python
cd tests/engines
if [[ $# -eq 0 ]]; then set -- dynamo_indexer; fi
exec "$directory/bin/python" -W error::ResourceWarning -m unittest "$@" --verbose
