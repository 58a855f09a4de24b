#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every test under every preset, and this tree beside the commit before. Takes hours on a small machine; tools/test.sh is the daily choice.
# Runs all presets even when one fails, and says at the end which ones did.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

./tools/setup.sh

failed=()
for preset in debug asan tsan release; do
  build_preset "$preset"
  # Longer than every day.
  cmake -D KVTIER_FUZZ_SECONDS=120 "build/$preset" >/dev/null
  run_tests "$preset" || failed+=("$preset")
done
./tools/test-previous.sh || failed+=("the commit before")
if [[ ${#failed[@]} -ne 0 ]]; then
  echo "test-full: failed under: ${failed[*]}" >&2
  exit 1
fi
echo "test-full: all passed"
