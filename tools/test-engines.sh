#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests kvtier with the other engines that it has a module for, on the CPU: with a real transformers,
# with the storage classes, pools and radix cache of SGLang's wheel, 40 MB, and the storage manager of LMCache's,
# 18 MB, which are unpacked and not installed, with the example engine, and with the structs of events of
# vLLM's wheel. They run in the environment that tools/test-vllm.sh installs, which has PyTorch and
# transformers.
#
# KVTIER_SGLANG_DIRECTORY: where the wheel is unpacked; default ~/.cache/kvtier/sglang-VERSION.
# KVTIER_LMCACHE_DIRECTORY: the same for LMCache, with some packages that it needs; default
# ~/.cache/kvtier/lmcache-VERSION.
# KVTIER_VLLM_DIRECTORY: where that environment is kept; default ~/.cache/kvtier/vllm-VERSION.
# KVTIER_BUILD_DIRECTORY: a build to take kvtierd and libkvtier from instead of making one.
# Arguments go to Python's unittest; without any, all tests run.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/engine_tests.sh

readonly sglang_version=0.5.23 lmcache_version=0.5.6
# Packages that LMCache needs to be imported and PyTorch's environment lacks.
readonly lmcache_packages=(
  sortedcontainers==2.4.0 numba==0.62.1 llvmlite==0.45.1 aiofile==3.12.3 caio==0.12.10
  aiofiles==25.1.0 cryptography==50.0.2 cffi==2.1.1 pycparser==3.12
)
export KVTIER_SGLANG_DIRECTORY=${KVTIER_SGLANG_DIRECTORY:-$HOME/.cache/kvtier/sglang-$sglang_version}
export KVTIER_LMCACHE_DIRECTORY=${KVTIER_LMCACHE_DIRECTORY:-$HOME/.cache/kvtier/lmcache-$lmcache_version}

prepare_engine_tests
locked unpack "SGLang $sglang_version" "$KVTIER_SGLANG_DIRECTORY" "sglang==$sglang_version"
locked unpack "LMCache $lmcache_version" "$KVTIER_LMCACHE_DIRECTORY/lmcache" \
  "lmcache==$lmcache_version"
locked unpack "LMCache's packages" "$KVTIER_LMCACHE_DIRECTORY/more" "${lmcache_packages[@]}"
echo "test-engines: SGLang $sglang_version, LMCache $lmcache_version, $build"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
run_engine_tests tests/engines "$@"
