# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts of this directory; sourced, under `set -o pipefail`, with the repository root as working
# directory.

# log_steps LOG: appends what a build says to LOG, and at each tenth of its steps tells how far it is; a first
# build takes minutes. Short ones pass in silence.
log_steps() {
  local line tenths=0
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$1"
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] &&
      ((BASH_REMATCH[2] >= 50 && BASH_REMATCH[1] * 10 / BASH_REMATCH[2] > tenths)); then
      tenths=$((BASH_REMATCH[1] * 10 / BASH_REMATCH[2]))
      echo "   step ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"
    fi
  done
}

# build_preset PRESET [TARGET...]: configures and builds. Reports its progress, the parts that the
# build leaves out, and, if it fails, the end of its output.
build_preset() {
  local preset=$1
  shift
  echo "== $preset: build"
  local log started=$SECONDS
  log=$(mktemp)
  local configured=yes
  cmake --preset "$preset" >"$log" 2>&1 || configured=''
  grep '^kvtier: ' "$log" || true
  if [[ -z $configured ]] ||
    ! cmake --build --preset "$preset" ${1:+--target "$@"} 2>&1 | log_steps "$log"; then
    tail -n 60 "$log" >&2
    rm -f "$log"
    echo "$preset: build failed" >&2
    return 1
  fi
  rm -f "$log"
  echo "== $preset: built in $((SECONDS - started)) s"
}

# run_tests PRESET [CTEST-ARGUMENT...]
run_tests() {
  local preset=$1
  shift
  echo "== $preset: test"
  ctest --preset "$preset" --parallel "$(nproc)" --no-tests=error --progress "$@"
}
