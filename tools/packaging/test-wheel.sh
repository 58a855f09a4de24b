#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries a wheel where users install it: in a fresh virtual environment, without this tree's libraries,
# and in bare roots of distributions, which have no compiler. There the whole of the first five minutes
# is played: pip install, `kvtierd --dev`, `kvtierctl doctor`, `python -m kvtier.demo`, `kvtierctl status`,
# kill -9 and restart.
#
#   tools/packaging/test-wheel.sh WHEEL [here] [bookworm] [noble] ...
#
# "here" is this machine; the others are suites of Debian or Ubuntu, whose roots mmdebstrap makes (as
# root; minutes each, and the registries must be reachable). Without any: here alone. KVTIER_PYTHON
# names the interpreter of "here".
set -euo pipefail
source "$(dirname "$0")/bare_root.sh"

die() {
  printf 'test-wheel: %s\n' "$*" >&2
  exit 1
}
[[ $# -ge 1 && -e $1 ]] || die 'usage: tools/packaging/test-wheel.sh WHEEL [here] [SUITE] ...'
readonly wheel=$(realpath "$1")
shift
readonly places=("${@:-here}")
# A user's commands; runs in a root or on this machine. $1: a directory of its own, $2: the wheel,
# $3: the interpreter.
readonly journey='
set -eu
home=$1 wheel=$2 python=$3
! command -v g++ >/dev/null || echo "note: there is a compiler here"
export HOME=$home XDG_CACHE_HOME=$home/cache TMPDIR=$home
unset XDG_RUNTIME_DIR KVTIER_SOCKET KVTIER_LIBRARY KVTIERD LD_LIBRARY_PATH PYTHONPATH || true
started=$(date +%s)
"$python" -m venv "$home/venv"
PATH=$home/venv/bin:$PATH
pip install -q --disable-pip-version-check "$wheel"
kvtierd --version
kvtierctl --version
# Each program and library finds all that it needs, here or in the wheel.
package=$(python -c "import kvtier; print(kvtier.__path__[0])")
for file in "$package"/bin/kvtier* "$package"/*.so* "$package"/libs/*.so*; do
  ! ldd "$file" 2>&1 | grep "not found" || { echo "needed by $file"; exit 1; }
done
# Starts the daemon with these options and waits until it serves.
serve() {
  kvtierd --dev --set disk.bytes=1GiB --set host.bytes=256MiB "$@" >"$home/kvtierd.log" 2>&1 &
  daemon=$!
  trap "kill $daemon" EXIT
  tries=0
  until kvtierctl status >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] && kill -0 "$daemon" || { cat "$home/kvtierd.log"; exit 1; }
    sleep 0.1
  done
}
mkdir "$home/cold"
serve --set restart.keep_for=0s --set "cold.endpoint=file://$home/cold"
sed -n "/serves user/,/Ctrl-C/p" "$home/kvtierd.log"
kvtierctl doctor
python -m kvtier.demo
echo "from pip install to the table of the demonstration: $(($(date +%s) - started)) s"
python -m kvtier.demo --private >"$home/private.log"
tail -n 1 "$home/private.log"
kvtierctl status
# The console script becomes the program: a signal reaches the daemon, which ends as asked.
kill -TERM "$daemon"
trap - EXIT
wait "$daemon"
# kvtier-keeper is found, and holds host memory for the next daemon when this one is killed.
# Nothing listens at the store: a daemon starts without it.
store=resp://127.0.0.1:1
[ -e "$package/libs/kvtier-cold-resp.so" ] || store=
serve --set restart.keep_for=1min --set "cold.endpoint=$store"
kill -KILL "$daemon"
wait "$daemon" || true
serve --set restart.keep_for=1min
kvtierctl status --json | python -c "import json, sys
restart = json.load(sys.stdin)[\"restart\"]
sys.exit(restart[\"host\"] != \"adopted\" and f\"host memory was not kept: {restart}\")"
kvtierctl stop --release
trap - EXIT
'

in_root() {
  # libstdc++6 is for numpy; kvtier's own parts bring theirs.
  make_root "$1" python3,python3-venv,ca-certificates,libstdc++6
  mkdir -p "$root/t"
  cp "$wheel" "$root/t/"
  chroot "$root" sh -c "$journey" journey /t "/t/${wheel##*/}" /usr/bin/python3
}

for place in "${places[@]}"; do
  printf '== %s\n' "$place"
  if [[ $place == here ]]; then
    mkdir "$work/here"
    sh -c "$journey" journey "$work/here" "$wheel" "${KVTIER_PYTHON:-python3}"
  else
    in_root "$place"
  fi
done
printf 'test-wheel: ok %s\n' "${places[*]}"
