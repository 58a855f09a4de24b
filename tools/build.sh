# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts of this directory; sourced with the repository root as working directory.

# build_preset PRESET [TARGET...]: configures and builds, quietly unless it fails, but for what the
# build says that it leaves out.
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
    ! cmake --build --preset "$preset" ${1:+--target "$@"} >>"$log" 2>&1; then
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
