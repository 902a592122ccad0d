# A QEMU whose images lie on dm, md and a partition, and nestrace, which follows them down. The QEMU is this machine's
# own; its guest never runs: the monitor makes the requests of its disks.
cd /tmp
. /tmp/devices
. /opt/nestrace/quiet.sh
rm -rf images.nest recorded.tar
load 9pnet_virtio 9p
mkdir -p /mnt/host
mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=262144,ro root /mnt/host || exit 1
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
mkfifo monitor
libraries=/mnt/host/lib/x86_64-linux-gnu:/mnt/host/usr/lib/x86_64-linux-gnu
LD_LIBRARY_PATH=$libraries /mnt/host/usr/bin/qemu-system-x86_64 -name guest=inner -S -machine pc,accel=tcg \
  -m 32 -nodefaults -display none -L /mnt/host/usr/share/qemu -L /mnt/host/usr/share/seabios \
  $arguments -qmp stdio < monitor > qemu.log 2>&1 &
qemu=$!
exec 3> monitor
tries=0
echo '{"execute":"qmp_capabilities"}' >&3
until grep -q '"return"' qemu.log; do
  tries=$((tries + 1))
  [ $tries -gt 600 ] && { cat qemu.log >&2; exit 1; }
  kill -0 $qemu || { cat qemu.log >&2; exit 1; }
  sleep 0.1
done
export LD_LIBRARY_PATH=/opt/nestrace
/opt/nestrace/nestrace guests --json > guests.json || exit 1
/opt/nestrace/nestrace guests > guests.txt
settle
cat > requests.sh << 'END'
. /tmp/devices
# Sectors that were written on a device.
written() {
  set -- $(cat /sys/class/block/$1/stat)
  echo $7
}
before=$(written $theirs)
monitor() {
  echo '{"execute":"human-monitor-command","arguments":{"command-line":"'"$1"'"}}'
}
# 64 writes of 16 KiB and 16 reads of 32 KiB on each disk.
for name in linear mirror pieces stripe ours; do
  n=0
  while [ $n -lt 64 ]; do
    monitor "qemu-io $name \\\"aio_write -P 7 $((n * 65536)) 16384\\\""
    n=$((n + 1))
  done
  monitor "qemu-io $name aio_flush"
  n=0
  while [ $n -lt 16 ]; do
    monitor "qemu-io $name \\\"aio_read $((n * 131072)) 32768\\\""
    n=$((n + 1))
  done
  monitor "qemu-io $name aio_flush"
done >&3
# The host works on its own file system meanwhile, each file with a commit of its journal.
n=0
while [ $n -lt 64 ]; do
  dd if=/dev/zero of=/mnt/theirs/file$n bs=4096 count=1 conv=fsync 2> /dev/null || exit 1
  n=$((n + 1))
done
# Answered when everything before has been done.
monitor "info blockstats" >&3
tries=0
until [ "$(grep -o 'rd_operations=16 wr_operations=64' /tmp/qemu.log | wc -l)" = 5 ]; do
  tries=$((tries + 1))
  [ $tries -gt 600 ] && exit 1
  sleep 0.1
done
sync
echo "{\"start\": $(cat /sys/class/block/$ours/start), \"theirs\": $(($(written $theirs) - before))}" > /tmp/counted.json
END
/opt/nestrace/nestrace record --guest inner -o images.nest -- sh requests.sh > record.log 2>&1
status=$?
echo '{"execute":"quit"}' >&3
wait $qemu
umount /mnt/host
[ $status = 0 ] || { cat record.log >&2; tail -5 qemu.log >&2; exit 1; }
tar -cf recorded.tar images.nest guests.json guests.txt counted.json
