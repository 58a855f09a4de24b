# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by what tries packages in bare roots of distributions. `make_root SUITE PACKAGES` makes one and sets
# `root`; all of them are gone when the script ends, which must not set a trap of its own. Needs root,
# mmdebstrap and the distribution's mirror within reach. PACKAGES: divided by commas.
work=$(mktemp -d)
readonly work
mounted=()
root=

remove_roots() {
  local path
  for path in "${mounted[@]}"; do umount -l "$path" 2>/dev/null || true; done
  rm -rf --one-file-system "$work"
}
trap remove_roots EXIT

# roots_are_made: whether this machine lets make_root work; if not, prints the obstacle.
roots_are_made() {
  if [[ $EUID -ne 0 ]]; then
    echo 'only root makes them'
  elif ! command -v mmdebstrap >/dev/null; then
    echo 'mmdebstrap is not installed'
  elif ! unshare --mount mount -t proc proc /proc 2>/dev/null; then
    echo 'mounts are not allowed'
  else
    return 0
  fi
  return 1
}

make_root() {
  local suite=$1 mirror=http://deb.debian.org/debian
  root=$(mktemp -d "$work/$suite-XXXXXX")
  chmod 0755 "$root"
  case $suite in
    bookworm | trixie) ;;
    jammy | noble | resolute)
      mirror='deb http://archive.ubuntu.com/ubuntu '"$suite"' main universe'
      # Debian has no keyring of Ubuntu; the root is thrown away after the test.
      [[ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]] || mirror=${mirror/deb /deb [trusted=yes] }
      ;;
    *)
      printf 'no such suite here: %s\n' "$suite" >&2
      exit 1
      ;;
  esac
  # A root that is thrown away need not reach the disk.
  mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --include="$2" "$suite" "$root" "$mirror"
  # The root reaches the package index as this machine does.
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  install -D --mode=0644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  mount -t proc proc "$root/proc" && mounted+=("$root/proc")
}
