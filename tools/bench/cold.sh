#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the library for RESP servers with redis-benchmark: each measurement stands beside one
# connection's pipelines of the same size and depth, run right before it, since the machine may be busy
# otherwise. Prints the medians of the ratios.
#
#   tools/bench/cold.sh [ROUNDS]      5 by default; build/release, or KVTIER_BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly rounds=${1:-5}
readonly build=${KVTIER_BUILD:-build/release}
readonly depth=16
readonly seconds=3
directory=$(mktemp -d /tmp/kvtier-cold.XXXXXX)
readonly directory redis=$directory/redis.sock

redis-server --port 0 --unixsocket "$redis" --save '' --appendonly no --maxmemory 4gb \
  --maxmemory-policy allkeys-lru >/dev/null &
readonly server=$!
trap 'kill -KILL $server; rm -rf "$directory"' EXIT
until redis-cli -s "$redis" ping >/dev/null 2>&1; do read -rt 0.1 <> <(:) || true; done

bench() {
  "$build/bin/kvtier-cold-bench" "$build/lib/kvtier-cold-resp.so" "$redis" "$1" "$2" "$depth" "$seconds" |
    cut -d" " -f1
}

ceiling() {
  local command=set requests=$(((512 << 20) / $2))
  [[ $1 == put ]] || command=get
  redis-benchmark -s "$redis" -c 1 -P "$depth" -d "$2" -n "$requests" -t "$command" --csv |
    awk -F'"' -v bytes="$2" 'NR == 2 { print $4 * bytes / 1e6 }'
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
  local bytes=$1 round puts=() gets=() most
  for ((round = 0; round < rounds; round++)); do
    most=$(ceiling put "$bytes")
    puts+=("$(bench put "$bytes"):$most")
    most=$(ceiling get "$bytes")
    gets+=("$(bench ask "$bytes"):$most")
  done
  report "put, $((bytes / 1024)) KiB" "${puts[@]}"
  report "get, $((bytes / 1024)) KiB" "${gets[@]}"
}

echo "| RESP, $depth under way | ceiling, MB/s | kvtier, MB/s | ratio, median (range) |"
echo "|---|---|---|---|"
for bytes in $((2 << 20)) $((256 << 10)); do measure "$bytes"; done
