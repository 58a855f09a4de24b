#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests kvtier's connector beside NIXL's under vLLM's MultiConnector: a prefill and a decode engine on the
# CPU, in the environment that tools/test-vllm.sh installs. NIXL's wheels, 60 MB, are unpacked beside it.
#
# KVTIER_NIXL_DIRECTORY: where they are unpacked; default ~/.cache/kvtier/nixl-VERSION.
# KVTIER_VLLM_DIRECTORY: where that environment is kept; default ~/.cache/kvtier/vllm-VERSION.
# KVTIER_BUILD_DIRECTORY: a build to take kvtierd and libkvtier from instead of making one.
# Arguments go to Python's unittest; without any, all tests run.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/engine_tests.sh

readonly nixl_version=1.5.1
nixl=${KVTIER_NIXL_DIRECTORY:-$HOME/.cache/kvtier/nixl-$nixl_version}

prepare_engine_tests
# PyTorch's wheel is one for CUDA 13, by which NIXL chooses.
locked unpack "NIXL $nixl_version" "$nixl" "nixl==$nixl_version" "nixl-cu13==$nixl_version"
echo "test-nixl: vLLM $vllm_version, NIXL $nixl_version, $build"
if [[ $# -eq 0 ]]; then set -- nixl_prefill_decode; fi
more_python_path=:$nixl
run_engine_tests tests/vllm "$@"
