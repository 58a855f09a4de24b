#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release.sh SOURCE: tools/release.sh with a wheel of a few bytes: its files, that it makes the same
# bytes twice, and that nothing but a tagged commit with notes is released.
set -euo pipefail
source_tree=$1
git -C "$source_tree" rev-parse HEAD >/dev/null 2>&1 || { echo "skipped: this is no git tree"; exit 77; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
# The files as they are here, committed in a tree of their own.
tree=$scratch/tree
mkdir "$tree"
git -C "$source_tree" ls-files -z | (cd "$source_tree" && xargs -0 tar --create --no-recursion) | tar --extract -C "$tree"
version=$(<"$tree/VERSION")
export GIT_AUTHOR_NAME=Test GIT_AUTHOR_EMAIL=test@localhost GIT_COMMITTER_NAME=Test GIT_COMMITTER_EMAIL=test@localhost
in_git() { git -C "$tree" -c init.defaultBranch=main "$@" >/dev/null; }
in_git init -q && in_git add -A && in_git commit -q -m "The tree"

wheel=$scratch/kvtier-$version-py3-none-manylinux_2_34_x86_64.whl
python3 - "$wheel" "$version" <<'PYTHON'
import sys, zipfile
inside = f"kvtier-{sys.argv[2]}.data/purelib/kvtier/"
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    for name in ("bin/kvtierd", "libs/libx.so.1", "libkvtier.so.0", "include/kvtier.h",
                 "include/kvtier.hpp", "kernels/include/prefill.h", "licenses/kvtier", "licenses/bash"):
        wheel.writestr(zipfile.ZipInfo(inside + name), name)
PYTHON
export KVTIER_WHEEL=$wheel KVTIER_NO_PACKAGES=1
release() { "$tree/tools/release.sh" "$@" >"$scratch/out" 2>&1; }
refused() {
  local why=$1
  shift
  ! release "$@" || fail "released, though $why"
  grep -q "$why" "$scratch/out" || fail "refused, but not because $why: $(<"$scratch/out")"
}

release --snapshot "$scratch/first" || fail "$(<"$scratch/out")"
release --snapshot "$scratch/second" || fail "$(<"$scratch/out")"
diff -r "$scratch/first" "$scratch/second" || fail "two snapshots differ"
made=$(cd "$scratch/first" && echo *)
expected="NOTES.md SHA256SUMS kvtier-$version-linux-x86_64.tar.gz ${wheel##*/} kvtier-$version.spdx.json kvtier-$version.tar.gz"
[[ $made == "$expected" ]] || fail "made: $made"
(cd "$scratch/first" && sha256sum --quiet -c SHA256SUMS) || fail "the checksums"
for name in include/kvtier/prefill.h include/kvtier/kvtier.hpp libkvtier.so; do
  tar -tf "$scratch/first/kvtier-$version-linux-x86_64.tar.gz" | grep "/$name\$" >/dev/null || fail "no $name in the tarball"
done
grep -q '"name": "bash"' "$scratch/first/kvtier-$version.spdx.json" || fail "a package is not listed"
refused 'is not empty' --snapshot "$scratch/first"

refused "no tag v$version" "$scratch/third"
in_git tag "v$version"
sed -i "s/^## Unreleased/## $version - 2030-01-01/" "$tree/CHANGELOG.md"
refused 'not committed' "$scratch/third"
in_git checkout -q CHANGELOG.md
refused 'CHANGELOG.md has nothing' "$scratch/third"
sed -i "s/^## Unreleased/## Unreleased\n\n## $version - 2030-01-01/" "$tree/CHANGELOG.md"
in_git commit -q -a -m "Release" && in_git tag -f "v$version"
release "$scratch/third" || fail "$(<"$scratch/out")"
grep -q '^### Added' "$scratch/third/NOTES.md" || fail "the notes"
echo ok
