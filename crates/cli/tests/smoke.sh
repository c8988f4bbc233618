#!/usr/bin/env bash
# Real processes, real clients: a cluster is made, used, hurt and checked. Under a minute.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
# BASALT_BIN: a binary that is built already.
if [ -n "${BASALT_BIN:-}" ]; then
  basalt=$BASALT_BIN
else
  basalt=${CARGO_TARGET_DIR:-$root/target}/debug/basalt
  cargo build --quiet --package cli
fi
# Not on tmpfs: devices are opened O_DIRECT.
work=$(mktemp -d "${SMOKE_DIR:-/var/tmp}/basalt-smoke.XXXXXX")
export XDG_STATE_HOME=$work/state
passed=0
step() { passed=$((passed + 1)); printf 'smoke %2d: %s\n' "$passed" "$*"; }
fail() { echo "smoke: $*" >&2; tail -n 20 "$work"/state/basalt/dev/smoke/*/log.txt >&2 || true; exit 1; }
b() { "$basalt" --cluster smoke "$@"; }
cleanup() { b dev destroy --yes >/dev/null 2>&1 || true; rm -rf "$work"; }
trap cleanup EXIT

b dev up --osds 3 --device-size 2GiB --export main/smoke --size 256MiB >"$work/up.txt" || fail "dev up: $(cat "$work/up.txt")"
uri="nbd+unix:///main/smoke?socket=$(b dev socket main/smoke)"
step "a cluster is up and exports a volume"

nbdinfo "$uri" >"$work/info.txt"
grep -q 'export-size: 268435456' "$work/info.txt" || fail "nbdinfo: $(cat "$work/info.txt")"
step "nbdinfo reads the export"

head -c 64M /dev/urandom >"$work/image"
truncate -s 256M "$work/image"
qemu-img convert -n -f raw -O raw "$work/image" "$uri"
qemu-img compare -f raw -F raw "$work/image" "$uri" >/dev/null || fail "qemu-img compare"
step "qemu-img writes an image and reads it back"

# Serves a volume or a snapshot at a socket until qemu has ended: serve NAME SOCKET FLAG... -- COMMAND...
serve() {
  local name=$1 socket=$2 flags=()
  shift 2
  while [ "$1" != -- ]; do flags+=("$1"); shift; done
  shift
  "$basalt" --cluster smoke nbd "$name" --socket "$socket" "${flags[@]}" >/dev/null 2>"$work/serve.txt" &
  local pid=$!
  for _ in $(seq 100); do [ -S "$socket" ] && break; sleep 0.1; done
  "$@" || fail "$*: $(cat "$work/serve.txt")"
  kill "$pid" && wait "$pid" || fail "the export of $name: $(cat "$work/serve.txt")"
}
b snapshot create main/smoke@image >/dev/null
snapshot_uri="nbd+unix:///main/smoke@image?socket=$work/snapshot.sock"
serve main/smoke@image "$work/snapshot.sock" -- qemu-img convert -f raw -c -O qcow2 "$snapshot_uri" "$work/image.qcow2"
qemu-img check -q -f qcow2 "$work/image.qcow2" || fail "the qcow2 image is damaged"
qemu-img compare -f raw -F qcow2 "$work/image" "$work/image.qcow2" >/dev/null || fail "the qcow2 image differs"
[ "$(stat -c %s "$work/image.qcow2")" -lt $((80 << 20)) ] || fail "holes take space in the qcow2 image"
size=$(qemu-img info --output=json "$work/image.qcow2" | sed -n 's/.*"virtual-size": \([0-9]*\).*/\1/p' | tail -1)
b volume create main/images "$size" >/dev/null
images_uri="nbd+unix:///main/images?socket=$work/images.sock"
serve main/images "$work/images.sock" -- \
  qemu-img convert -n --target-is-zero -f qcow2 -O raw "$work/image.qcow2" "$images_uri"
rm -f "$work/images.sock"
serve main/images "$work/images.sock" --read-only -- \
  qemu-img compare -f raw -F raw "$work/image" "$images_uri" >/dev/null
allocated=$(b volume du main/images --json | sed -n 's/.*"allocated_bytes": \([0-9]*\).*/\1/p' | head -1)
[ "$allocated" -lt $((80 << 20)) ] || fail "holes take space in the volume: $allocated bytes"
step "a snapshot becomes a compressed qcow2 image, and the image a volume"

b volume create main/second 64MiB >/dev/null
if b nbd main/smoke --socket "$work/second.sock" 2>"$work/refused.txt"; then fail "a second writer was let in"; fi
grep -q 'BSLT-' "$work/refused.txt" || fail "no code in: $(cat "$work/refused.txt")"
step "a second writer is refused with a code"

fio --name=smoke --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --iodepth=16 --offset=64M --size=64M --rate_iops=1500 \
  --verify=crc32c --verify_fatal=1 --do_verify=1 --output="$work/fio.txt" &
fio=$!
for n in 1 2 3; do
  sleep 1.5
  b dev kill "$n" >/dev/null
  sleep 1
  b dev start "$n" >/dev/null
done
kill -0 "$fio" || fail "fio ended before the last kill: $(cat "$work/fio.txt")"
wait "$fio" || fail "fio under kill -9: $(cat "$work/fio.txt")"
step "fio verifies while every OSD in turn is killed and restarted"

qemu-img compare -f raw -F raw "$work/image" "$uri" >/dev/null && fail "fio wrote, so the image must differ"
qemu-img dd -f raw -O raw bs=1M count=64 if="$uri" of="$work/back" 2>/dev/null
cmp -n $((64 << 20)) "$work/image" "$work/back" || fail "the image's data changed"
step "what fio did not touch is unchanged"

b pg verify --deep >"$work/verify.txt" || fail "pg verify: $(cat "$work/verify.txt")"
step "all replicas are equal, block by block"

# At once, while they are still being taken down: `dev up` must not hold them for running.
for pid in "$XDG_STATE_HOME"/basalt/dev/smoke/pids/*; do kill -9 "$(cat "$pid")"; done
b dev up --export main/smoke >/dev/null || fail "restart after killing everything"
qemu-img dd -f raw -O raw bs=1M count=64 if="$uri" of="$work/back" 2>/dev/null
cmp -n $((64 << 20)) "$work/image" "$work/back" || fail "data was lost when everything was killed"
step "everything is killed at once, and the data is there"

b dev down >/dev/null
echo "smoke: $passed steps passed"
