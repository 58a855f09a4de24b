#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows the main job on a real model: one prompt, computed once, then served from the pool, from host
# memory, and from disk after the daemon was killed. On a machine with an NVIDIA GPU the pool is in
# its memory, and the model's attention runs there. Installs and builds what it needs, works in a
# temporary directory, and leaves nothing running.
#
# KVTIER_BUILD_DIRECTORY names a build to take the programs from instead of making one;
# KVTIER_QUICKSTART_DEVICE=host keeps to host memory where there is a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

readonly prompt_file=tools/quickstart_prompt.txt
readonly new_tokens=48
# What one other client may hold: the model's longest sequence, less a little.
readonly crowd_blocks=250 block_tokens=16
readonly runs=(cold pool host disk)
# The longest that the model may take for one run, on a machine that is busy.
readonly generate_s=300

# Without tests, and without CUDA where there is no GPU; set below.
preset=demo
build=${KVTIER_BUILD_DIRECTORY:-build/$preset}
bin=$build/bin
device=host
work=''
daemon=''
crowd=()

say() { printf '%s\n' "$*"; }
die() {
  printf 'quickstart: %s\n' "$*" >&2
  [[ -z $work ]] || tail -n 20 "$work/kvtierd.log" >&2 2>/dev/null || true
  exit 1
}

disperse() {
  local pid
  for pid in "${crowd[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
  for pid in "${crowd[@]}"; do wait "$pid" 2>/dev/null || true; done
  crowd=()
}

cleanup() {
  disperse
  if [[ -n $daemon ]]; then
    kill -9 "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
  [[ -z $work ]] || rm -rf "$work"
}
trap cleanup EXIT

ctl() { "$bin/kvtierctl" --socket "$work/kvtier.sock" "$@"; }

# field JSON MEMBER...: prints one member of a JSON document.
field() {
  python3 -c '
import json, sys
value = json.loads(sys.argv[1])
for name in sys.argv[2:]:
    value = value[int(name) if isinstance(value, list) else name]
print(value)' "$@"
}

# wait_for WHAT SECONDS COMMAND...: tries the command again and again, for so long at most; if it takes
# time, says what is waited for.
wait_for() {
  local what=$1 limit_s=$2 began=$SECONDS said=''
  shift 2
  until "$@"; do
    ((SECONDS - began < limit_s)) || return 1
    if [[ -z $said ]] && ((SECONDS - began >= 3)); then
      say "   waiting for $what, $limit_s s at most"
      said=yes
    fi
    sleep 0.1
  done
}

answers() {
  ctl --timeout 5 status >/dev/null 2>&1 && return
  kill -0 "$daemon" 2>/dev/null || die 'kvtierd ended; its log says:'
  return 1
}

start_daemon() {
  "$bin/kvtierd" \
    --set "server.socket=$work/kvtier.sock" --set "server.admin_socket=$work/admin.sock" \
    --set "pool.device=$device" --set pool.bytes=256MiB --set host.bytes=512MiB \
    --set disk.bytes=4GiB --set "disk.directory=$work/disk" \
    --set cache.max_wait_ms=60000 --set restart.keep_for=0s >>"$work/kvtierd.log" 2>&1 &
  daemon=$!
  wait_for 'kvtierd to serve' 60 answers || die 'kvtierd does not answer; its log says:'
}

# A GPU counts if there is a driver for it and a compiler for the kernels, or they are there already.
has_gpu() {
  [[ ${KVTIER_QUICKSTART_DEVICE:-} != host ]] || return 1
  nvidia-smi -L 2>/dev/null | grep '^GPU ' >/dev/null || return 1
  [[ -e ${KVTIER_BUILD_DIRECTORY:-build/demo-gpu}/lib/libkvtier_kernels.so ]] || command -v nvcc >/dev/null ||
    [[ -x /usr/local/cuda/bin/nvcc ]]
}

# What the daemon chose is what the model must use; without kernels that passed their test, it says
# why, and host memory serves.
choose_device() {
  [[ $device != host ]] || return 0
  local status
  status=$(ctl status --json)
  say "   pool on $(field "$status" device name); kernels $(field "$status" kernels state)"
  [[ $(field "$status" kernels state) != ready ]] || return 0
  say "   no attention on this GPU: $(field "$status" kernels reason); host memory serves instead"
  kill_daemon
  device=host
  start_daemon
}

kill_daemon() {
  kill -9 "$daemon"
  wait "$daemon" 2>/dev/null || true
  daemon=''
}

# generate RUN: continues the prompt and keeps the report.
generate() {
  timeout --foreground "$generate_s" "$bin/kvtier-generate" --socket "$work/kvtier.sock" --device "${device%%:*}" \
    --prompt-file "$prompt_file" --tokens "$new_tokens" --json >"$work/$1.json" ||
    die "kvtier-generate failed, or took longer than $generate_s s ($1)"
  local report
  report=$(<"$work/$1.json")
  say "   first token after $(printf '%.0f' "$(field "$report" ttft_ms)") ms"
}

# take BLOCKS: starts clients that take so many blocks together.
take() {
  local left=$1 blocks
  while ((left > 0)); do
    blocks=$((left < crowd_blocks ? left : crowd_blocks))
    # One prompt token; the rest of the blocks is reserved for the text to come.
    "$bin/kvtier-generate" --socket "$work/kvtier.sock" --device "${device%%:*}" --prompt x \
      --threads 1 --tokens $((blocks * block_tokens - 1)) >/dev/null 2>&1 &
    crowd+=($!)
    left=$((left - blocks))
  done
}

# Sets the caller's `status`.
is_taken() {
  status=$(ctl --timeout 5 status --json) || die 'kvtierd does not answer; its log says:'
  [[ $(field "$status" pools 0 cached) == 0 ]]
}

# Other clients take the whole pool, each for a long text of its own, so that what no client references
# has to move down to host memory; then they are gone again. A client that is refused, because another
# took its blocks or the offloads did not keep up, computes on without the cache: as long as blocks are
# left, others are started for them.
crowd_out() {
  local status round
  status=$(ctl status --json)
  for ((round = 0; round < 10; round++)); do
    take $(($(field "$status" pools 0 free) + $(field "$status" pools 0 cached)))
    if wait_for 'other clients to take the pool' 15 is_taken; then
      say "   ${#crowd[@]} clients took the pool; killing them"
      disperse
      return
    fi
    say "   $(field "$status" pools 0 cached) blocks are still cached; more clients come"
  done
  die 'other clients could not fill the pool; the daemon says:'
}

# Prints the table and the last line; fails if a run's text or source is not what it should be.
verdict() {
  python3 - "$work" "${runs[@]}" <<'PYTHON'
import json, sys
work, runs = sys.argv[1], sys.argv[2:]
reports = {run: json.load(open(f"{work}/{run}.json")) for run in runs}
print(f"\n{'run':<6}{'first token':>14}{'prefill skipped':>20}   served from")
for run, report in reports.items():
    tiers = ", ".join(f"{name} {count}" for name, count in report["tiers"].items() if count)
    skipped = f"{report['cached_tokens']} of {report['prompt_tokens']}"
    print(f"{run:<6}{report['ttft_ms']:>11.1f} ms{skipped:>20}   {tiers or 'nowhere: computed'}")
text = reports["cold"]["text"]
print(f"\ntext: ...{text}")
wrong = [run for run, report in reports.items() if report["text"] != text]
cold = [run for run in runs[1:] if reports[run]["tiers"][run] == 0]
if wrong or cold:
    sys.exit(f"quickstart: other text: {wrong or 'none'}; not served from its tier: {cold or 'none'}")
times = " ".join(f"{run}_ms={report['ttft_ms']:.1f}" for run, report in reports.items())
print(f"quickstart: ok {times} identical=yes")
PYTHON
}

programs=(kvtierd kvtierctl kvtier-generate)
if has_gpu; then
  device=cuda:0
  programs+=(kvtier_kernels)
  preset=demo-gpu
fi
if [[ -z ${KVTIER_BUILD_DIRECTORY:-} ]]; then
  build=build/$preset
  bin=$build/bin
  ./tools/setup.sh --demo
  build_preset "$preset" "${programs[@]}"
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/kvtier-quickstart-XXXXXX")

say "== kvtierd: pool 256 MiB, host 512 MiB, disk 4 GiB in $work"
start_daemon
choose_device
say "== cold: a prompt of $(wc -c <"$prompt_file") bytes, nothing cached"
generate cold
say '== pool: the same prompt again'
generate pool
say '== host: after other clients crowded it out of the pool'
crowd_out
generate host
say '== disk: after kill -9 and restart of the daemon'
ctl drain >/dev/null || die 'what is cached could not be written to disk; the daemon says:'
kill_daemon
start_daemon
generate disk
verdict || die 'failed; the daemon says:'
