#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures how much a configured cold tier slows acquires of blocks that this host has: a daemon without
# one beside a daemon whose store answers, answers in one of ten milliseconds, and then stands still. They are
# measured in turn. Prints medians of p50 and p99 over the rounds.
#
#   tools/bench/cold_acquire.sh [ROUNDS [STORE]]      9, resp; build/release, or KVTIER_BUILD
#
# STORE is resp (redis-server), files (a file system with a server of its own) or s3 (moto).
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly rounds=${1:-9} kind=${2:-resp}
readonly build=${KVTIER_BUILD:-build/release}
directory=$(mktemp -d /tmp/kvtier-cold.XXXXXX)
readonly directory
if [[ $kind == s3 ]]; then source tools/s3_servers.sh; fi
end() {
  kill -KILL $(cat "$directory"/*.pid)
  if [[ $kind == files ]]; then umount -l "$directory/root"; fi
  if [[ $kind == s3 ]]; then stop_s3_servers; fi
  rm -rf "$directory"
}
trap end EXIT

start_store() {
  case $kind in
  resp)
    redis-server --port 0 --unixsocket "$directory/redis.sock" --save '' --appendonly no >/dev/null &
    store=$! endpoint=resp://$directory/redis.sock
    until redis-cli -s "$directory/redis.sock" ping >/dev/null 2>&1; do read -rt 0.1 <> <(:) || true; done
    ;;
  files)
    mkdir "$directory"/{root,below}
    "$build/bin/kvtier-slow-files" 0 1 "$directory/below" "$directory/root" &
    store=$! endpoint=file://$directory/root
    until mountpoint -q "$directory/root"; do read -rt 0.1 <> <(:) || true; done
    ;;
  s3)
    start_moto
    store=${s3_pids[0]} endpoint="s3://blocks?endpoint=http://127.0.0.1:$s3_port"
    ;;
  esac
  echo "$store" >"$directory/store.pid"
}

slow_down() {
  while true; do
    kill -STOP "$store"
    read -rt 0.009 <> <(:) || true
    kill -CONT "$store"
    read -rt 0.001 <> <(:) || true
  done
}

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

start_store
start_daemon without
start_daemon with --set "cold.endpoint=$endpoint"
for ((round = 0; round < rounds; round++)); do
  measure without none "$round"
  measure with healthy "$round"
  slow_down &
  echo $! >"$directory/slow.pid"
  measure with slow "$round"
  kill -KILL "$(cat "$directory/slow.pid")"
  wait "$(cat "$directory/slow.pid")" 2>/dev/null || true
  rm "$directory/slow.pid"
  kill -STOP "$store"
  measure with stopped "$round"
  kill -CONT "$store"
done

python3 - "$directory" "$rounds" <<'END'
import json, statistics, sys
directory, rounds = sys.argv[1], int(sys.argv[2])
def rows(kind):
    return [{row["hashes"]: row for row in json.load(open(f"{directory}/{kind}.{i}.json"))["acquire"]}
            for i in range(rounds)]
kinds = {"none": "no cold tier", "healthy": "answers", "slow": "answers slowly", "stopped": "stands still"}
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
