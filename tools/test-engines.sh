#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests kvtier with the other engines that it has a module for, on the CPU: with a real transformers,
# and with the storage classes and host pools of SGLang's wheel, 40 MB, which is unpacked and not
# installed. They run in the environment that tools/test-vllm.sh installs, which has PyTorch and
# transformers.
#
# KVTIER_SGLANG_DIRECTORY: where the wheel is unpacked; default ~/.cache/kvtier/sglang-VERSION.
# KVTIER_VLLM_DIRECTORY: where that environment is kept; default ~/.cache/kvtier/vllm-VERSION.
# KVTIER_BUILD_DIRECTORY: a build to take kvtierd and libkvtier from instead of making one.
# Arguments go to Python's unittest; without any, all tests run.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/engine_tests.sh

readonly sglang_version=0.5.23
export KVTIER_SGLANG_DIRECTORY=${KVTIER_SGLANG_DIRECTORY:-$HOME/.cache/kvtier/sglang-$sglang_version}

# unpack_sglang: unless it is.
unpack_sglang() {
  [[ ! -f $KVTIER_SGLANG_DIRECTORY/unpacked ]] || return 0
  echo "test-engines: unpacking SGLang $sglang_version into $KVTIER_SGLANG_DIRECTORY"
  local wheel
  wheel=$(mktemp -d)
  python3 -m pip download --quiet --no-deps --only-binary :all: --disable-pip-version-check \
    --python-version 3.11 --platform manylinux_2_34_x86_64 --dest "$wheel" \
    "sglang==$sglang_version"
  rm -rf "$KVTIER_SGLANG_DIRECTORY"
  mkdir -p "$KVTIER_SGLANG_DIRECTORY"
  python3 -m zipfile --extract "$wheel"/sglang-*.whl "$KVTIER_SGLANG_DIRECTORY"
  rm -rf "$wheel"
  touch "$KVTIER_SGLANG_DIRECTORY/unpacked"
}

prepare_engine_tests
locked unpack_sglang
echo "test-engines: SGLang $sglang_version, $build"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
run_engine_tests tests/engines "$@"
