#!/usr/bin/env bash
# Random histories, sent from here to OpenZFS's kernel module in a virtual machine and from there to
# here: every kind of stream, and what comes out is compared entry by entry. What the kernel sent is
# received here, sent again, and received there.
# CENOTE_ZVM: as for kernel.sh. HISTORIES: how many each way (20).
. "$(dirname "$(readlink -f "$0")")/common.sh"
[ -x "${CENOTE_ZVM:-}" ] || die "CENOTE_ZVM names no program that runs a virtual machine"
house=$work/streams
export CENOTE_STATE_DIR=$house/state HISTORY_ROOT=$house/at
unset CENOTE_SOCKET
last=$((${HISTORIES:-20} - 1))

go_away() {
  "$CENOTE" zpool export -a -f >/dev/null 2>&1 || true
  "$CENOTE" daemon stop >/dev/null 2>&1 || true
}
go_away; rm -rf "$house"; mkdir -p "$house"/{out,bin,at,pools}
trap go_away EXIT
for tool in zfs zpool; do ln -s "$CENOTE" "$house/bin/$tool"; done
cp "$here/conformance/history.py" "$house/out"
history() { PATH=$house/bin:$PATH python3 "$house/out/history.py" "$@"; }
pool() { # NAME
  truncate -s 2G "$house/pools/$1"
  "$CENOTE" zpool create -R "$house/at" "$1" "$house/pools/$1"
}
machine() { ZVM_OUT=$house/out "$CENOTE_ZVM" -m 4096 -t 3000 "$1" | tee "$house/machine.log"; }

# Volumes are block devices there alone: the first who write them.
pool here
history make "$house/out/ours" here $(seq 0 "$last" | grep -v '9$')
cat > "$house/first.sh" <<JOB
modprobe zfs || exit 1
export HISTORY_MOUNTS=1
for name in there taken; do truncate -s 2G /dev/shm/\$name; zpool create -R /mnt \$name /dev/shm/\$name; done
python3 /out/history.py take /out/ours taken
python3 /out/history.py make /out/theirs there $(seq -s ' ' 0 "$last")
echo "kernel: made"
for name in there taken; do zpool scrub -w \$name; zpool status -v \$name; done
JOB
machine "$house/first.sh"
grep -q 'kernel: made' "$house/machine.log" || die "the machine did not come to its end"
cp "$house/machine.log" "$house/first.log"
pool back
history take "$house/out/theirs" back | tee "$house/here.log"
history pass "$house/out/theirs" back "$house/out/again"
cat > "$house/second.sh" <<'JOB'
modprobe zfs || exit 1
export HISTORY_MOUNTS=1
truncate -s 2G /dev/shm/again; zpool create -R /mnt again /dev/shm/again
python3 /out/history.py take /out/again again
zpool scrub -w again; zpool status -v again
JOB
machine "$house/second.sh"
"$CENOTE" zpool export -a
count() { grep -Ec "^history .*: equal.?$" "$1" || true; }
failed=0
verdict() { # WHAT LOG WANTED
  local found; found=$(count "$2")
  row "$1" "$found of $3"
  [ "$found" = "$3" ] || failed=1
}
verdict "sent here, received by the kernel module" "$house/first.log" "$(ls "$house/out/ours" | wc -l)"
verdict "sent by the kernel module, received here" "$house/here.log" $((last + 1))
verdict "sent on from here, received by the kernel module" "$house/machine.log" $((last + 1))
for name in here back; do
  "$CENOTE" verify --leaks -d "$house/pools/$name" "$name" > "$house/$name.verify" || { failed=1; row "$name" "NOT clean"; }
done
exit "$failed"
