# A QEMU with images on NFS, SMB and iSCSI. Of each one disk works before the network is delayed, and one while it is; two more
# do asynchronous I/O on NFS and on SMB.
cd /tmp
. /tmp/devices
. /opt/nestrace/qemu.sh
disk() {
  echo "-drive file=$2,if=none,id=$1,format=raw,cache=none,aio=$3 -device virtio-blk-pci,drive=$1,id=$1"
}
image() {
  dd if=/dev/zero of=$1 bs=1M count=8 conv=fsync 2> dd.log || { cat dd.log >&2; exit 1; }
}
arguments=
for name in fast slow native io_uring; do
  case $name in
    fast | slow) aio=threads ;;
    *) aio=$name ;;
  esac
  for server in nfs:images smb:share; do
    file=/mnt/${server#*:}/$name.img
    image $file
    arguments="$arguments $(disk ${server%:*}-$name $file $aio)"
  done
done
for name in fast slow; do
  eval "device=/dev/\$iscsi_$name"
  arguments="$arguments $(disk iscsi-$name $device native)"
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
kernels_counts() {
  cat /proc/self/mountstats > /tmp/mountstats-$1
  cat /proc/fs/cifs/Stats > /tmp/smb-stats-$1
}
counts='rd_operations=40 wr_operations=40'
kernels_counts before
one_by_one nfs-fast
one_by_one smb-fast
one_by_one iscsi-fast
monitor "info blockstats"
done_requests "$counts" 3
kernels_counts fast
for aio in native io_uring; do
  one_by_one nfs-$aio
  one_by_one smb-$aio
done
monitor "qemu-io smb-native \\\"flush\\\""
monitor "info blockstats"
done_requests "$counts" 10
kernels_counts async
# Each packet on its way to a server, and each on its way back.
LD_LIBRARY_PATH=/opt/nestrace /opt/nestrace/tc qdisc add dev lo root netem delay 5ms || exit 1
one_by_one nfs-slow
one_by_one smb-slow
one_by_one iscsi-slow
monitor "info blockstats"
done_requests "$counts" 20
kernels_counts slow
LD_LIBRARY_PATH=/opt/nestrace /opt/nestrace/tc qdisc del dev lo root
END
/opt/nestrace/nestrace record --guest inner -o images.nest -- sh requests.sh > record.log 2>&1
status=$?
end_qemu
[ $status = 0 ] && [ -s mountstats-slow ] || { cat record.log >&2; tail -5 qemu.log >&2; exit 1; }
tar -cf recorded.tar images.nest guests.json guests.txt mountstats-* smb-stats-*
