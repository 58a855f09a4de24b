#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures how much a configured cold tier slows acquires of blocks that this host has: a daemon without
# one beside a daemon whose RESP server answers, and then stands still. The three are measured in turn.
# Prints medians of p50 and p99 over the rounds.
#
#   tools/bench/cold_acquire.sh [ROUNDS]      9 by default; build/release, or KVTIER_BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly rounds=${1:-9}
readonly build=${KVTIER_BUILD:-build/release}
directory=$(mktemp -d /tmp/kvtier-cold.XXXXXX)
readonly directory
trap 'kill -KILL $(cat "$directory"/*.pid); rm -rf "$directory"' EXIT

redis-server --port 0 --unixsocket "$directory/redis.sock" --save '' --appendonly no >/dev/null &
readonly store=$!
echo $store >"$directory/redis.pid"
until redis-cli -s "$directory/redis.sock" ping >/dev/null 2>&1; do read -rt 0.1 <> <(:) || true; done

start_daemon() {
  local name=$1
  shift
  "$build/bin/kvtierd" --set "server.socket=$directory/$name.sock" \
    --set "server.admin_socket=$directory/$name.admin" --set pool.device=host \
    --set pool.bytes=256MiB --set host.bytes=256MiB --set disk.bytes=0B --set restart.keep_for=0s \
    "$@" >"$directory/$name.out" 2>&1 &
  echo $! >"$directory/$name.pid"
  until [[ -S $directory/$name.sock ]]; do read -rt 0.1 <> <(:) || true; done
}

measure() {
  "$build/bin/kvtierctl" --json --socket "$directory/$1.sock" \
    --admin-socket "$directory/$1.admin" bench --samples 2000 >"$directory/$2.$3.json"
}

start_daemon without
start_daemon with --set "cold.endpoint=resp://$directory/redis.sock"
for ((round = 0; round < rounds; round++)); do
  measure without none "$round"
  measure with healthy "$round"
  kill -STOP $store
  measure with stopped "$round"
  kill -CONT $store
done

python3 - "$directory" "$rounds" <<'END'
import json, statistics, sys
directory, rounds = sys.argv[1], int(sys.argv[2])
def rows(kind):
    return [{row["hashes"]: row for row in json.load(open(f"{directory}/{kind}.{i}.json"))["acquire"]}
            for i in range(rounds)]
kinds = {"none": "no cold tier", "healthy": "answers", "stopped": "stands still"}
measured = {kind: rows(kind) for kind in kinds}
print("| hashes | cold tier | p50 us | p99 us | p50 / without | p99 / without |\n|---|---|---|---|---|---|")
for hashes in measured["none"][0]:
    for kind, name in kinds.items():
        def median(key):
            return statistics.median(one[hashes][key] for one in measured[kind])
        def ratio(key):
            pairs = zip(measured[kind], measured["none"])
            return statistics.median(one[hashes][key] / base[hashes][key] for one, base in pairs)
        print(f"| {hashes} | {name} | {median('p50_us'):.0f} | {median('p99_us'):.0f} | "
              f"{ratio('p50_us'):.2f} | {ratio('p99_us'):.2f} |")
END
