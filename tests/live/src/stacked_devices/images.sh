# A QEMU whose images lie on dm, md and a partition, and nestrace, which follows them down.
cd /tmp
. /tmp/devices
. /opt/nestrace/quiet.sh
. /opt/nestrace/qemu.sh
rm -rf images.nest recorded.tar
# One way of doing I/O on each.
disks="linear:none:io_uring mirror:none:native pieces:none:threads stripe:writeback:threads ours:none:native"
arguments=
for disk in $disks; do
  name=${disk%%:*}
  cache=${disk#*:}
  cache=${cache%:*}
  fallocate -l 8388608 /mnt/$name/image.img
  # Written once, so that nothing is left to convert when it is recorded.
  dd if=/dev/zero of=/mnt/$name/image.img bs=1M count=8 conv=notrunc,fsync 2> /dev/null
  arguments="$arguments -drive file=/mnt/$name/image.img,if=none,id=$name,format=raw,cache=$cache,aio=${disk##*:}"
  arguments="$arguments -device virtio-blk-pci,drive=$name,id=$name"
done
start_qemu $arguments
export LD_LIBRARY_PATH=/opt/nestrace
/opt/nestrace/nestrace guests --json > guests.json || exit 1
/opt/nestrace/nestrace guests > guests.txt
settle
cat > requests.sh << 'END'
. /tmp/devices
. /opt/nestrace/qemu.sh
# Sectors that were written on a device.
written() {
  set -- $(cat /sys/class/block/$1/stat)
  echo $7
}
before=$(written $theirs)
# 64 writes of 16 KiB and 16 reads of 32 KiB on each disk.
for name in linear mirror pieces stripe ours; do
  requests $name "aio_write -P 7" 64 16384 65536
  monitor "qemu-io $name aio_flush"
  requests $name aio_read 16 32768 131072
  monitor "qemu-io $name aio_flush"
done
# The host works on its own file system meanwhile, each file with a commit of its journal.
n=0
while [ $n -lt 64 ]; do
  dd if=/dev/zero of=/mnt/theirs/file$n bs=4096 count=1 conv=fsync 2> /dev/null || exit 1
  n=$((n + 1))
done
# Answered when everything before has been done.
monitor "info blockstats"
done_requests 'rd_operations=16 wr_operations=64' 5
sync
echo "{\"start\": $(cat /sys/class/block/$ours/start), \"theirs\": $(($(written $theirs) - before))}" > /tmp/counted.json
END
/opt/nestrace/nestrace record --guest inner -o images.nest -- sh requests.sh > record.log 2>&1
status=$?
end_qemu
[ $status = 0 ] || { cat record.log >&2; tail -5 qemu.log >&2; exit 1; }
tar -cf recorded.tar images.nest guests.json guests.txt counted.json
