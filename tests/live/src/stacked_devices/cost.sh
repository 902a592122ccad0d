# A QEMU in a cgroup with a weight, on a disk whose iocost model does 20 requests a second.
cd /tmp
. /tmp/devices
. /opt/nestrace/quiet.sh
. /opt/nestrace/qemu.sh
rm -rf cost.nest recorded.tar
# The kernel counts how long it lets each cgroup wait.
echo Y > /sys/module/blk_cgroup/parameters/blkcg_debug_stats || exit 1
mount -t cgroup2 cgroup /sys/fs/cgroup || exit 1
cd /sys/fs/cgroup
echo +io > cgroup.subtree_control
mkdir guests
echo 'default 37' > guests/io.weight
disk=$(dirname $(readlink -f /sys/class/block/$ours))
number=$(cat $disk/dev)
rate='rseqiops=20 rrandiops=20 wseqiops=20 wrandiops=20'
echo "$number ctrl=user model=linear rbps=1000000000 wbps=1000000000 $rate" > io.cost.model || exit 1
limits='rpct=95 rlat=250000 wpct=95 wlat=250000 min=100 max=100'
echo "$number enable=1 ctrl=user $limits" > io.cost.qos || exit 1
cd /tmp
image=/mnt/ours/image.img
start_qemu -drive file=$image,if=none,id=weighed,format=raw,cache=none,aio=native \
  -device virtio-blk-pci,drive=weighed,id=weighed
echo $qemu > /sys/fs/cgroup/guests/cgroup.procs || exit 1
settle
cat > requests.sh << 'END'
. /opt/nestrace/qemu.sh
requests weighed aio_read 80 16384 65536
monitor "qemu-io weighed aio_flush"
monitor "info blockstats"
done_requests 'rd_operations=80' 1
END
LD_LIBRARY_PATH=/opt/nestrace /opt/nestrace/nestrace record --guest inner -o cost.nest -- sh requests.sh > record.log 2>&1
status=$?
# Its counts are of the last period that has ended.
sleep 2
grep "^$number " /sys/fs/cgroup/guests/io.stat | grep -o 'cost.wait=[0-9]*' > waited.txt
end_qemu
echo "$number enable=0" > /sys/fs/cgroup/io.cost.qos
[ $status = 0 ] && [ -s waited.txt ] || { cat record.log /sys/fs/cgroup/guests/io.stat >&2; tail -5 qemu.log >&2; exit 1; }
tar -cf recorded.tar cost.nest waited.txt
