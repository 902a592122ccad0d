# Writes of a block each, and whole stripes with reads, on arrays of their own. The first block of an array has no place.
. /tmp/devices
cut -d' ' -f1 /proc/uptime > /tmp/begun

. /opt/nestrace/quiet.sh
. /opt/nestrace/in_folder.sh

cat > /tmp/work.fio << END
[global]
direct=1
ioengine=libaio
stonewall
offset=1m
[modify]
filename=/dev/$modify
rw=randwrite
bs=4k
size=16m
io_size=1m
iodepth=4
[rebuild]
filename=/dev/$rebuild
rw=randwrite
bs=4k
size=16m
io_size=256k
[six]
filename=/dev/$six
rw=randwrite
bs=4k
size=16m
io_size=512k
iodepth=4
[whole]
filename=/dev/$whole
rw=write
bs=128k
size=4m
iodepth=2
[read]
filename=/dev/$whole
rw=randread
bs=16k
size=16m
io_size=1m
iodepth=4
END
look > /tmp/before
run_fio
settle
look > /tmp/after
