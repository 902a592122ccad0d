# Makes the block devices of the guest that plays the host, and leaves their names in /tmp/devices.
set -e
mkdir -p /mnt/ext4 /mnt/xfs /mnt/work
# Loaded before the recorder looks: their types and tracepoints come with the modules.
load ext4 xfs btrfs loop mq_deadline brd sd_mod scsi_debug

virtio=$(disk ext4-disk)
second=$(disk xfs-disk)
echo mq-deadline > /sys/block/$virtio/queue/scheduler
# A small limit, so that large I/O is split.
echo 512 > /sys/block/$virtio/queue/max_sectors_kb
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/$virtio
mkfs.xfs -q -K /dev/$second
# Nothing does I/O by itself while the counts are looked at: no timer of a journal, a log or write-back,
# no bitmaps read ahead.
echo 0 > /proc/sys/vm/dirty_writeback_centisecs
echo 720000 > /proc/sys/fs/xfs/xfssyncd_centisecs
mount -t ext4 -o noatime,commit=600,no_prefetch_block_bitmaps /dev/$virtio /mnt/ext4
mount -t xfs -o noatime /dev/$second /mnt/xfs

# A loop device with direct I/O on ext4; another on XFS with a partition, whose bios are remapped; a
# third one through the page cache.
fallocate -l 67108864 /mnt/ext4/direct.img
fallocate -l 67108864 /mnt/xfs/partition.img
fallocate -l 33554432 /mnt/xfs/cached.img
# What a process uses as QEMU uses an image.
fallocate -l 1048576 /mnt/xfs/image.img
printf '\0\0\2\0\203\0\0\0\0\10\0\0\0\370\1\0' | dd of=/mnt/xfs/partition.img bs=1 seek=446 conv=notrunc 2> /dev/null
printf '\125\252' | dd of=/mnt/xfs/partition.img bs=1 seek=510 conv=notrunc 2> /dev/null
direct=$(/usr/bin/losetup --find --show --direct-io=on /mnt/ext4/direct.img)
partition=$(/usr/bin/losetup --find --show --direct-io=on --partscan /mnt/xfs/partition.img)
cached=$(/usr/bin/losetup --find --show /mnt/xfs/cached.img)
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $direct
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 ${partition}p1

# The SCSI test driver is busy now and then, so that requests are put back.
for block in /sys/block/sd*; do
  grep -q scsi_debug "$block/device/model" && scsi=${block##*/}
done
echo 2 > /sys/bus/pseudo/drivers/scsi_debug/delay
echo 0x8000 > /sys/bus/pseudo/drivers/scsi_debug/opts
echo mq-deadline > /sys/block/$scsi/queue/scheduler

sync
for name in direct partition cached; do
  eval "$name=\${$name#/dev/}"
done
for name in virtio second direct partition cached scsi; do
  eval "echo $name=\$$name"
done > /tmp/devices
echo ram=ram0 >> /tmp/devices
# What is recorded, and what of it ext4 lies on.
echo "recorded='$virtio $second $direct $partition $cached $scsi ram0' ext4=$virtio" >> /tmp/devices
# NAME DEVICE NUMBER, for the host.
. /tmp/devices
for name in virtio second direct partition cached scsi ram; do
  eval "device=\$$name"
  echo "device $name $device $(cat /sys/block/$device/dev)"
done
echo "file direct $(stat -c '%i' /mnt/ext4/direct.img) $(cat /sys/block/$virtio/dev)"
echo "file partition $(stat -c '%i' /mnt/xfs/partition.img) $(cat /sys/block/$second/dev)"
echo "file image $(stat -c '%i' /mnt/xfs/image.img) $(cat /sys/block/$second/dev)"
