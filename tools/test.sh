#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the requirements, builds, and runs the tests: first, under the sanitizers, the programs
# that can show most there (memory: those that decode, allocate or move blocks; threads: those that
# have some), then every test of the release build. Ends with ctest's summary; stops at the first
# run that fails. tools/test-full.sh runs everything under every preset.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

readonly asan_programs=(base_test protocol_test gpu_test tiers_cache_test tiers_storage_test
  tiers_index_test tiers_encryption_test daemon_session_test daemon_events_test daemon_server_test
  client_calls_test client_connections_test client_regions_test client_sequences_test
  daemon_files_test kvtier-sim)
readonly tsan_programs=(base_test gpu_test tiers_storage_test tiers_index_test daemon_loop_test
  daemon_metrics_test daemon_server_test daemon_files_test)

./tools/setup.sh

build_preset asan "${asan_programs[@]}"
run_tests asan --exclude-regex _NOT_BUILT --label-exclude 'crash|fuzz|slow|integration|replay'
build_preset tsan "${tsan_programs[@]}"
run_tests tsan --exclude-regex _NOT_BUILT --label-exclude 'crash|fuzz|slow|integration|replay|sim'
build_preset release
run_tests release
