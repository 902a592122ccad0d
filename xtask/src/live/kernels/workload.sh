# What the recorded devices do. Nothing else uses them meanwhile; they are at rest before and after.
. /tmp/devices
cut -d' ' -f1 /proc/uptime > /tmp/begun

. /opt/nestrace/quiet.sh

run_fio() {
  fio /tmp/work.fio > /tmp/fio.log 2>&1 || { tail -5 /tmp/fio.log >&2; exit 1; }
}

# Buffered and direct, small and split, merged at the back and at the front, synced, discarded.
in_folder() {
  cat > /tmp/work.fio << END
[global]
directory=$1
fallocate=none
stonewall
[buffered]
rw=randrw
bs=4k
size=1m
fsync=16
[merged]
rw=write
bs=4k
size=1m
direct=1
ioengine=libaio
iodepth=16
iodepth_batch=16
iodepth_batch_complete_min=16
[backwards]
filename=merged.0.0
rw=write:-8k
bs=4k
size=256k
offset=512k
direct=1
ioengine=libaio
iodepth=16
iodepth_batch=16
iodepth_batch_complete_min=16
[large]
rw=write
bs=2m
size=4m
direct=1
[again]
filename=large.0.0
rw=read
bs=128k
size=4m
END
  run_fio
  rm $1/buffered* && sync && fstrim $1
  rm $1/merged* $1/large*
}

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
