# A QEMU with images on NFS and on iSCSI. Two of the disks work before the network is delayed, two while it is; two more
# do asynchronous I/O on NFS.
cd /tmp
. /tmp/devices
. /opt/nestrace/qemu.sh
disk() {
  echo "-drive file=$2,if=none,id=$1,format=raw,cache=none,aio=$3 -device virtio-blk-pci,drive=$1,id=$1"
}
arguments=
for name in fast slow; do
  image=/mnt/images/$name.img
  dd if=/dev/zero of=$image bs=1M count=8 conv=fsync 2> /dev/null
  eval "device=/dev/\$iscsi_$name"
  arguments="$arguments $(disk nfs-$name $image threads) $(disk iscsi-$name $device native)"
done
for aio in native io_uring; do
  image=/mnt/images/$aio.img
  dd if=/dev/zero of=$image bs=1M count=8 conv=fsync 2> /dev/null
  arguments="$arguments $(disk nfs-$aio $image $aio)"
done
start_qemu $arguments
export LD_LIBRARY_PATH=/opt/nestrace
/opt/nestrace/nestrace guests --json > guests.json || exit 1
/opt/nestrace/nestrace guests > guests.txt
cat > requests.sh << 'END'
. /opt/nestrace/qemu.sh
one_by_one() {
  at=0
  while [ $at -lt 2621440 ]; do
    for operation in "aio_write -P 7" aio_read; do
      monitor "qemu-io $1 \\\"$operation $at 16384\\\""
      monitor "qemu-io $1 aio_flush"
    done
    at=$((at + 65536))
  done
}
counts='rd_operations=40 wr_operations=40'
one_by_one nfs-fast
one_by_one iscsi-fast
monitor "info blockstats"
done_requests "$counts" 2
cat /proc/self/mountstats > /tmp/mountstats-fast
one_by_one nfs-native
one_by_one nfs-io_uring
monitor "info blockstats"
done_requests "$counts" 6
cat /proc/self/mountstats > /tmp/mountstats-async
# Each packet on its way to a server, and each on its way back.
LD_LIBRARY_PATH=/opt/nestrace /opt/nestrace/tc qdisc add dev lo root netem delay 5ms || exit 1
one_by_one nfs-slow
one_by_one iscsi-slow
monitor "info blockstats"
done_requests "$counts" 12
cat /proc/self/mountstats > /tmp/mountstats-slow
LD_LIBRARY_PATH=/opt/nestrace /opt/nestrace/tc qdisc del dev lo root
END
cat /proc/self/mountstats > /tmp/mountstats-before
/opt/nestrace/nestrace record --guest inner -o images.nest -- sh requests.sh > record.log 2>&1
status=$?
end_qemu
[ $status = 0 ] && [ -s mountstats-slow ] || { cat record.log >&2; tail -5 qemu.log >&2; exit 1; }
tar -cf recorded.tar images.nest guests.json guests.txt mountstats-before mountstats-fast mountstats-async mountstats-slow
