#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the library for S3 with curl on Ceph's gateway: each measurement stands beside curl's, run right
# before it with as many connections, on URLs that were signed before. Prints the medians of the ratios.
#
#   tools/bench/cold_s3.sh [ROUNDS]      5 by default; build/release, or KVTIER_BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."
source tools/s3_servers.sh

readonly rounds=${1:-5}
readonly build=${KVTIER_BUILD:-build/release}
readonly depth=16
readonly seconds=4

bench() {
  "$build/bin/kvtier-cold-bench" "$build/lib/kvtier-cold-s3.so" "blocks?endpoint=http://127.0.0.1:$s3_port" \
    "$1" "$2" "$depth" "$seconds" "$2" | cut -d" " -f1
}

# As much as the library moves in its time, more or less.
ceiling() {
  local verb=put started ended count=$(((256 << 20) / $2))
  [[ $1 == put ]] || verb=get
  head -c "$2" /dev/zero >"$s3_directory/object"
  python3 tools/bench/presign.py "$verb" "http://127.0.0.1:$s3_port" "$count" "$s3_directory/object" \
    >"$s3_directory/curl"
  started=${EPOCHREALTIME/./}
  curl --silent --parallel --parallel-max "$depth" --fail --header 'Expect:' --config "$s3_directory/curl" \
    2>/dev/null
  ended=${EPOCHREALTIME/./}
  echo "$2 $count $started $ended" | awk '{ printf "%.1f", $1 * $2 / 1048576 / ($4 - $3) * 1e6 }'
}

report() {
  python3 - "$@" <<'END'
import statistics, sys
name, *numbers = sys.argv[1:]
pairs = [tuple(map(float, pair.split(":"))) for pair in numbers]
ratios = sorted(ours / ceiling for ours, ceiling in pairs)
print(f"| {name} | {statistics.median(p[1] for p in pairs):.0f} | "
      f"{statistics.median(p[0] for p in pairs):.0f} | {statistics.median(ratios):.2f} "
      f"({ratios[0]:.2f} to {ratios[-1]:.2f}) |")
END
}

measure() {
  local bytes=$1 verb round most pairs
  for verb in put get ask; do
    pairs=()
    for ((round = 0; round < rounds; round++)); do
      most=$(ceiling "$verb" "$bytes")
      pairs+=("$(bench "$verb" "$bytes"):$most")
    done
    report "$verb, $((bytes / 1024)) KiB" "${pairs[@]}"
  done
}

start_gateway
echo "| S3, $depth under way | curl, MB/s | kvtier, MB/s | ratio, median (range) |"
echo "|---|---|---|---|"
for bytes in $((2 << 20)) $((256 << 10)); do measure "$bytes"; done
