#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries the last stage of the Dockerfile where there is no Docker: its steps are run in a bare root of
# Debian 12, and its program as a container would run it: as the image's user, without capabilities, in
# namespaces of its own, with a root that it cannot write to. A client of this machine, which shares
# the socket's directory alone, stores and loads; the health check is asked.
#
#   tools/packaging/test-image.sh WHEEL
#
# Needs root, mmdebstrap, and a Debian mirror within reach.
set -euo pipefail
cd "$(dirname "$0")/../.."

die() {
  printf 'test-image: %s\n' "$*" >&2
  exit 1
}
[[ $# == 1 && -e $1 ]] || die 'usage: tools/packaging/test-image.sh WHEEL'
readonly wheel=$(realpath "$1")
readonly work=$(mktemp -d)
readonly root=$work/root
daemon=
cleanup() {
  [[ -z $daemon ]] || kill -KILL "$daemon" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
chmod 0755 "$work"

# The steps of the last stage, one a line, as Docker would run them.
last_stage() {
  awk '/^FROM /{stage = ""} {stage = stage $0 "\n"} END {printf "%s", stage}' Dockerfile |
    sed -e ':more' -e '/\\$/{N; s/\\\n *//; b more}' | grep -v '^#'
}

mmdebstrap --quiet --variant=minbase bookworm "$root" http://deb.debian.org/debian
tools/packaging/unpack-wheel.sh "$wheel" "$root/opt/kvtier"
while read -r step text; do
  case $step in
    RUN) chroot "$root" sh -c "$text" ;;
    USER) user=$text ;;
    HEALTHCHECK | CMD) [[ $text != *'['* ]] || health=$text ;;
    ENTRYPOINT) entrypoint=$text ;;
    FROM | COPY | ENV | VOLUME) ;;
    *) die "a step that is not known here: $step" ;;
  esac
done < <(last_stage)
[[ -n ${user:-} && -n ${health:-} && -n ${entrypoint:-} ]] || die 'the stage lacks a step'
health=$(python3 -c 'import json, re, sys; print(*json.loads(re.search(r"\[.*\]", sys.argv[1])[0]))' "$health")
entrypoint=$(python3 -c 'import json, sys; print(*json.loads(sys.argv[1]))' "$entrypoint")

printf '[server]\nsocket = "/run/kvtier/kvtier.sock"\nadmin_socket = "/run/kvtier/admin.sock"\n' >"$work/kvtierd.toml"
printf '[pool]\nbytes = "64MiB"\n[host]\nbytes = "128MiB"\n[disk]\nbytes = "256MiB"\nfree_floor_bytes = "0B"\n' \
  >>"$work/kvtierd.toml"
printf '[cold]\nendpoint = "file:///run/kvtier/cold"\n' >>"$work/kvtierd.toml"
printf '[[tenant]]\nname = "engines"\nuids = [0]\n' >>"$work/kvtierd.toml"
cp "$work/kvtierd.toml" "$root/etc/"

# in_container COMMAND...: as the image's user, with /run/kvtier and /var/lib/kvtier as its volumes. The
# change of root takes a capability, and so comes before the change of user.
in_container() {
  exec unshare --mount --pid --fork --kill-child --ipc --net sh -c '
    root=$1 uid=${2%:*} gid=${2#*:}; shift 2
    mount --bind "$root" "$root"
    for volume in run/kvtier var/lib/kvtier; do mount --bind "$root/$volume" "$root/$volume"; done
    mount -t proc proc "$root/proc"
    mount -o remount,bind,ro "$root"
    exec chroot "$root" setpriv --reuid="$uid" --regid="$gid" --clear-groups --bounding-set=-all \
      --inh-caps=-all --no-new-privs "$@"' sh "$root" "$user" "$@"
}

(in_container $entrypoint --config /etc/kvtierd.toml >"$work/kvtierd.log" 2>&1) &
daemon=$!
for ((tries = 0; ; ++tries)); do
  if (in_container $health >"$work/status" 2>&1); then break; fi
  [[ $tries -lt 300 ]] && kill -0 "$daemon" || { cat "$work/status" "$work/kvtierd.log" >&2; die 'it does not serve'; }
  sleep 0.1
done
cat "$work/status"

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "$wheel"
KVTIER_SOCKET=$root/run/kvtier/kvtier.sock "$work/venv/bin/python" -m kvtier.demo
printf 'test-image: ok, %s\n' "$(du -sh "$root" | cut -f1)"
