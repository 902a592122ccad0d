# Direct I/O on each stack: files on the volumes, and the bare array and loop devices.
. /tmp/devices
cut -d' ' -f1 /proc/uptime > /tmp/begun

. /opt/nestrace/quiet.sh
. /opt/nestrace/in_folder.sh

cat > /tmp/work.fio << END
[global]
direct=1
ioengine=libaio
stonewall
size=2m
[linear]
filename=/mnt/linear/file
rw=randrw
bs=4k
iodepth=4
fsync=16
[parity-small]
filename=/dev/$parity
rw=randwrite
bs=4k
io_size=512k
size=8m
offset=1m
iodepth=4
[parity-whole]
filename=/dev/$parity
rw=write
bs=128k
size=4m
offset=16m
iodepth=2
[thin]
filename=/dev/$thin
rw=randwrite
bs=4k
size=4m
io_size=1m
iodepth=4
fsync=16
[behind]
filename=/dev/$behind
rw=randrw
bs=4k
size=4m
io_size=2m
iodepth=4
fsync=16
[loop-direct]
filename=/dev/$direct
rw=randrw
bs=4k
iodepth=4
fsync=32
[loop-merged]
filename=/dev/$direct
rw=write
bs=4k
size=512k
offset=8m
iodepth=16
iodepth_batch=16
iodepth_batch_complete_min=16
[loop-large]
filename=/dev/$direct
rw=rw
bs=2m
size=8m
offset=16m
[loop-cached]
filename=/dev/$cached
rw=randrw
bs=4k
iodepth=4
fsync=32
END
look > /tmp/before
run_fio
settle
look > /tmp/after
