#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs each kernel once under compute-sanitizer's memcheck and racecheck.
#
#   sanitize.sh DIRECTORY [LOGS]     the directory of the gpu_*_test programs; where logs go
#
# Needs a Hopper GPU and compute-sanitizer. Exit: 0 clean, 1 something was found or did not run.
set -uo pipefail
readonly programs=$1 logs=${2:-.}
export LD_LIBRARY_PATH=$programs/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
readonly limit_s=${KVTIER_SANITIZE_LIMIT_S:-240}

readonly runs=(
  "gpu_decode_test Decode.IsRightAtOddLengths"
  "gpu_decode_test Decode.IsRightWithScales"
  "gpu_decode_test Decode.ReplaysInAGraphWithOtherLengths"
  "gpu_decode_test DecodeShared.GivesWhatThePlainKernelGives"
  "gpu_prefill_test Prefill.MatchesTheReferenceForOddLengthsInOneLaunch"
  "gpu_prefill_test Prefill.AppliesScalesOfEveryGranularity"
  "gpu_prefill_test Prefill.ReplaysOneGraphForOtherLengths"
  "gpu_prefill_test Prefill.WorksOffLongSequencesInTallTiles"
  "gpu_prefill_test PrefillShort.IsRightOverAFewTilesOfEveryTypeAndHeadSize"
  "gpu_prefill_test PrefillShort.ReplaysOneGraphForOtherLengthsAndWithSettledTables"
  "gpu_prefill_test PrefillShort.ReplaysOneGraphOverAnFp8CacheForOtherLengths"
  "gpu_mla_test MlaDecode.IsRightAtOddLengths"
  "gpu_mla_test MlaDecode.IsRightOverAnFp8CacheWithScalesOfEveryKind"
  "gpu_mla_test MlaDecode.MergesTheManyPartsOfALongSequence"
  "gpu_mla_test MlaDecode.ReplaysOneGraphForOtherLengths"
  "gpu_kv_write_test *"
  "gpu_merge_lse_test *"
)

check() {
  local tool=$1 program=$2 filter=$3
  # A test that has the library run out of memory is no finding.
  local options=()
  [[ $tool != memcheck ]] || options=(--report-api-errors no)
  local log=$logs/$tool-$program-${filter//[^A-Za-z0-9]/_}.log
  timeout "$limit_s" compute-sanitizer --tool "$tool" "${options[@]}" --error-exitcode 9 \
    "$programs/$program" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1
  local status=$?
  printf '%-9s %-20s %-50s %s\n' "$tool" "$program" "$filter" \
    "$([[ $status -eq 0 ]] && echo clean || echo "exit $status: $log")"
  return $status
}

jobs=()
for tool in memcheck racecheck; do
  for run in "${runs[@]}"; do
    check "$tool" "${run%% *}" "${run#* }" &
    jobs+=($!)
  done
done
failed=0
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
exit $failed
