# What the recorded devices do. Nothing else uses them meanwhile; they are at rest before and after.
. /tmp/devices
cut -d' ' -f1 /proc/uptime > /tmp/begun

. /opt/nestrace/quiet.sh
. /opt/nestrace/in_folder.sh

# On the bare device; direct I/O, deep, with flushes.
on_device() {
  cat > /tmp/work.fio << END
[global]
filename=/dev/$1
size=4m
direct=1
ioengine=libaio
stonewall
[random]
rw=randrw
bs=4k
io_size=1m
iodepth=16
fsync=32
[near]
rw=randwrite
bs=4k
size=256k
iodepth=32
iodepth_batch=8
END
  run_fio
}

look > /tmp/before
in_folder /mnt/ext4
mount -t ext4 /dev/$direct /mnt/work && in_folder /mnt/work && umount /mnt/work
mount -t ext4 /dev/${partition}p1 /mnt/work && in_folder /mnt/work && umount /mnt/work
on_device $cached
on_device $ram
echo 7 > /sys/bus/pseudo/drivers/scsi_debug/every_nth
on_device $scsi
echo 0 > /sys/bus/pseudo/drivers/scsi_debug/every_nth
settle
look > /tmp/after
