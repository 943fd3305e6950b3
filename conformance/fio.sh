#!/usr/bin/env bash
# fio: random reads and writes, every block with its checksum, through the kernel's cache and past
# it, with fsync and without, read again after a new mount. FIO_MIB: size of each file.
. "$(dirname "$(readlink -f "$0")")/common.sh"
need fio fio
mib=${FIO_MIB:-256} passed=0 all=0

run() { # WHAT OPTION...
  all=$((all + 1))
  if fio --name="$1" --directory="$work/fio/at" --size="${mib}m" --verify=crc32c \
    --verify_fatal=1 --ioengine=libaio --iodepth=8 --output="$work/fio/log-$1" \
    --aux-path="$work/fio" --buffer_compress_percentage=50 "${@:2}" >/dev/null 2>"$work/fio/errors-$1"; then
    passed=$((passed + 1))
  else
    printf 'fio: %s failed: see %s\n' "$1" "$work/fio/log-$1" >&2
  fi
}

make_pool fio $((mib * 16)) compression=lz4
start fio
for direct in 0 1; do
  run mixed-$direct --rw=randrw --bs=8k --direct=$direct --do_verify=1
  run sizes-$direct --rw=randwrite --bsrange=512-256k --bs_unaligned=$((1 - direct)) \
    --blockalign=4k --direct=$direct --do_verify=1
  run fsync-$direct --rw=randwrite --bs=8k --direct=$direct --fsync=16 --do_verify=1 \
    --io_size=$((mib / 8))m
  run jobs-$direct --rw=randrw --bs=16k --direct=$direct --numjobs=4 --size=$((mib / 4))m \
    --do_verify=1 --group_reporting
done
stop fio
start fio
for direct in 0 1; do
  run again-$direct --filename=fsync-$direct.0.0 --rw=randwrite --bs=8k --verify_only=1 \
    --io_size=$((mib / 8))m --direct=$direct
done
stop fio
row "$(fio --version), verified crc32c" "$passed of $all"
[ "$passed" = "$all" ]
