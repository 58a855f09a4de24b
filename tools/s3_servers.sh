# SPDX-License-Identifier: Apache-2.0
# Starts servers that speak S3, in a directory of their own and on this machine's own address; sourced with
# the repository root as working directory. Both have the bucket `blocks` and know one pair of keys.
export AWS_ACCESS_KEY_ID=AKIDTEST AWS_SECRET_ACCESS_KEY=secret/+of=tests
s3_directory=$(mktemp -d /tmp/kvtier-s3.XXXXXX)
s3_pids=() s3_scheme=http
readonly s3_directory

stop_s3_servers() {
  ((${#s3_pids[@]} == 0)) || kill -KILL "${s3_pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$s3_directory"
}
trap stop_s3_servers EXIT

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# background LOG COMMAND...
background() {
  local log=$1
  shift
  "$@" >"$s3_directory/$log" 2>&1 &
  s3_pids+=($!)
}

# await_server PORT LOG: until it answers, by TLS or without.
await_server() {
  local end=$((SECONDS + 60))
  until curl --silent --insecure --output /dev/null --max-time 5 "$s3_scheme://127.0.0.1:$1/"; do
    if ((SECONDS > end)); then
      tail -n 20 "$s3_directory/$2" >&2
      echo "the server on port $1 does not answer" >&2
      return 1
    fi
    read -rt 0.2 <> <(:) || true
  done
}

make_bucket() {
  curl --silent --insecure --show-error --fail --output /dev/null --request PUT --aws-sigv4 aws:amz:us-east-1:s3 \
    --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" \
    --header "x-amz-content-sha256: $(sha256sum </dev/null | cut -d' ' -f1)" "$s3_scheme://127.0.0.1:$1/blocks"
}

# make_certificate: of the server, by an authority of its own.
make_certificate() {
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=kvtier-tests -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$s3_directory/key.pem" -out "$s3_directory/certificate.pem" 2>/dev/null
}

# start_moto [ARGUMENT...]: s3_port is its port. It takes any signature. PyPI's packages are installed at the first
# run.
start_moto() {
  local venv=${KVTIER_MOTO_DIRECTORY:-$HOME/.cache/kvtier/moto-5.2.5}
  if [[ ! -x $venv/bin/moto_server ]]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'moto[server]==5.2.5'
  fi
  s3_port=$(free_port)
  background moto.log "$venv/bin/moto_server" --host 127.0.0.1 --port "$s3_port" "$@"
  await_server "$s3_port" moto.log
  make_bucket "$s3_port"
}

# start_gateway: s3_port is the port of Ceph's gateway, in front of a monitor and a store in memory. It checks
# signatures. Nothing here needs root or a disk.
start_gateway() {
  local ceph=$s3_directory/ceph monitor fsid osd
  monitor=$(free_port)
  fsid=$(cat /proc/sys/kernel/random/uuid)
  osd=$(cat /proc/sys/kernel/random/uuid)
  mkdir -p "$ceph"/{mon,osd,rgw}
  export CEPH_CONF=$ceph/ceph.conf
  cat >"$CEPH_CONF" <<END
[global]
fsid = $fsid
mon host = v2:127.0.0.1:$monitor
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
ms mon service mode = crc
ms mon cluster mode = crc
ms bind msgr1 = false
osd objectstore = memstore
memstore device bytes = 8589934592
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
run dir = $ceph
admin socket =
log file =
pid file =
mon data = $ceph/mon
osd data = $ceph/osd
END
  monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$monitor]" "$ceph/monmap" >/dev/null
  ceph-mon --mkfs -i a --monmap "$ceph/monmap"
  background mon.log ceph-mon -f -i a
  timeout 120 ceph osd new "$osd" >/dev/null
  ceph-osd -i 0 --mkfs --osd-uuid "$osd" 2>/dev/null
  background osd.log ceph-osd -f -i 0
  timeout 120 radosgw-admin user create --uid kvtier --display-name kvtier \
    --access-key "$AWS_ACCESS_KEY_ID" --secret-key "$AWS_SECRET_ACCESS_KEY" >/dev/null 2>&1
  s3_port=$(free_port)
  background rgw.log radosgw -f -n client.admin --ms-mon-client-mode crc --auth-client-required none \
    --rgw-data "$ceph/rgw" --rgw-frontends "beast endpoint=127.0.0.1:$s3_port" --rgw-enable-apis s3
  await_server "$s3_port" rgw.log
  make_bucket "$s3_port"
}

have_gateway() { command -v radosgw ceph-mon ceph-osd radosgw-admin ceph >/dev/null; }
