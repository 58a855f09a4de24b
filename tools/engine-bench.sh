#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures vLLM with and without kvtier, and beside vLLM's own offloading: times to first token of
# cold prompts and of hits in each tier, and throughput without hits. Prints a table and writes
# results.json, table.md and the logs.
#
#   tools/engine-bench.sh [--out DIRECTORY] [--configurations none,native,fs,lmcache_mp,pegaflow,kvtier] [--graphs] ...
#   tools/engine-bench.sh --help
#
# PYTHON: an interpreter that has vLLM; default python3. KVTIERD, KVTIER_LIBRARY: the daemon and the
# client library; default: build/release. Needs a GPU with 64 GB free unless --small is given.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
readonly root build=$root/build/release bench=$root/tools/bench/engine

if [[ " $* " =~ \ (-h|--help)\  ]]; then
  exec "${PYTHON:-python3}" "$bench/engine_bench.py" --help
fi
export KVTIERD=${KVTIERD:-$build/bin/kvtierd} KVTIER_LIBRARY=${KVTIER_LIBRARY:-$build/lib/libkvtier.so.0}
if [[ ! -x $KVTIERD || ! -e $KVTIER_LIBRARY ]]; then
  echo "engine-bench: build the release preset first, or set KVTIERD and KVTIER_LIBRARY" >&2
  exit 2
fi

# vLLM finds the random weights as an installed plugin, so it gets a directory that looks like one.
plugin=$(mktemp -d)
trap 'rm -rf "$plugin"' EXIT
cp "$bench/random_weights.py" "$plugin/kvtier_random_weights.py"
mkdir "$plugin/kvtier_random_weights-0.dist-info"
printf 'Metadata-Version: 2.1\nName: kvtier-random-weights\nVersion: 0\n' \
  >"$plugin/kvtier_random_weights-0.dist-info/METADATA"
printf '[vllm.general_plugins]\nkvtier_random_weights = kvtier_random_weights:register\n' \
  >"$plugin/kvtier_random_weights-0.dist-info/entry_points.txt"

export PYTHONPATH=$root/client/python:$root/tests/python:$plugin${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1

# The program ends its engines and daemons when it is told to end.
"${PYTHON:-python3}" "$bench/engine_bench.py" "$@" &
readonly program=$!
trap 'kill -TERM "$program" 2>/dev/null || true' TERM INT HUP
wait "$program" && exit 0 || status=$?
# A signal ends the first wait, not the program.
while kill -0 "$program" 2>/dev/null; do wait "$program" || status=$?; done
exit "$status"
