#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build_steps.sh SOURCE: the scripts that build tell how far they are, with a cmake that only says so.
set -euo pipefail
cd "$1"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
cat >"$scratch/cmake" <<'CMAKE'
#!/bin/sh
case $1 in --build) ;; *) echo "kvtier: left out: kernels" && exit ;; esac
for step in $(seq "$STEPS"); do echo "[$step/$STEPS] Building"; done
echo "the error" >&2
exit "$CODE"
CMAKE
chmod +x "$scratch/cmake"
build() {
  env PATH="$scratch:$PATH" STEPS="$1" CODE="$2" bash -c \
    'set -euo pipefail; source tools/build.sh; build_preset release some' 2>"$scratch/errors"
}

told=$(build 200 0) || fail "a build that succeeds"
[[ $told == *"left out: kernels"*"step 20 of 200"*"step 200 of 200"*"built in"* ]] || fail "told: $told"
[[ $(grep -c ' step ' <<<"$told") == 10 ]] || fail "not at each tenth: $told"
[[ ! -s $scratch/errors ]] || fail "errors of a build that succeeds: $(<"$scratch/errors")"
! build 3 0 | grep ' step ' || fail "steps of a short build"
! build 200 1 >"$scratch/told" || fail "a build that fails"
grep -q 'the error' "$scratch/errors" || fail "the end of its output is not told"

for script in gpu-bundle campaign-bundle test-install packaging/build-{wheel,packages}; do
  code=0
  KVTIER_BUILD_DIRECTORY=$scratch "tools/$script.sh" --help 2>"$scratch/errors" >/dev/null || code=$?
  [[ $code == 2 && $(<"$scratch/errors") == usage:* ]] || fail "$script takes --help for a directory"
done
mkdir "$scratch/home"
touch "$scratch/home/kept"
! KVTIER_BUILD_DIRECTORY=$scratch tools/gpu-bundle.sh "$scratch/home" 2>/dev/null || fail "a bundle of nothing"
[[ -e $scratch/home/kept ]] || fail "gpu-bundle empties a directory that is no bundle"
echo ok
