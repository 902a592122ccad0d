# Makes devices of dm and md in the guest that plays the host, and leaves their names in /tmp/devices.
set -e
export LD_LIBRARY_PATH=/opt/nestrace
load ext4 xfs loop dm_mod md_mod raid0 raid1

parted=$(disk parted)
mirror_a=$(disk mirror-a)
mirror_b=$(disk mirror-b)
files=$(disk files)
half_a=$(disk half-a)
half_b=$(disk half-b)
halves=$(disk halves)

# Two partitions of 48 MiB, or one of 200.
partitions() {
  printf "$2" | dd of=/dev/$1 bs=1 seek=446 conv=notrunc 2> /dev/null
  printf '\125\252' | dd of=/dev/$1 bs=1 seek=510 conv=notrunc 2> /dev/null
  blockdev --rereadpt /dev/$1
}
partitions $parted '\0\0\2\0\203\0\0\0\0\10\0\0\0\100\6\0'
for half in $half_a $half_b $halves; do
  partitions $half '\0\0\2\0\203\0\0\0\0\10\0\0\0\200\1\0\0\0\2\0\203\0\0\0\0\210\1\0\0\200\1\0'
done

# mapped NAME, its table on stdin: the kernel's name.
mapped() {
  /opt/nestrace/dmsetup create --noudevsync --noudevrules $1
  echo dm-$(/opt/nestrace/dmsetup info -c --noheadings -o minor $1)
}
# raid NAME LEVEL DEVICE…: without a super block, so that nothing writes but the file system.
raid() {
  name=$1 level=$2
  shift 2
  echo $name > /sys/module/md_mod/parameters/new_array
  cd /sys/block/$name/md
  echo none > metadata_version
  echo $level > level
  echo $# > raid_disks
  [ $level = raid0 ] && echo 65536 > chunk_size
  slot=0
  for member; do
    cat /sys/class/block/$member/dev > new_dev
    kib=$(($(cat /sys/class/block/$member/size) / 2))
    echo $kib > dev-$member/size
    echo $slot > dev-$member/slot
    slot=$((slot + 1))
  done
  if [ $level = raid1 ]; then
    echo $kib > component_size
    echo none > resync_start
  fi
  echo active > array_state
  cd /
}

linear=$(echo 0 405504 linear /dev/${parted}1 2048 | mapped linear)
raid md0 raid1 $mirror_a $mirror_b
stripe=$(echo 0 196608 striped 2 128 /dev/${half_a}1 0 /dev/${half_b}1 0 | mapped stripe)
raid md1 raid0 ${half_a}2 ${half_b}2
# Over a loop device, in two pieces that have changed places.
mkfs.xfs -q -K /dev/$files
mkdir -p /mnt/files
mount -t xfs -o noatime /dev/$files /mnt/files
fallocate -l 67108864 /mnt/files/loop.img
loop=$(/usr/bin/losetup --find --show --direct-io=on /mnt/files/loop.img)
pieces=$(printf '0 65536 linear %s 65536\n65536 65536 linear %s 0\n' $loop $loop | mapped pieces)
loop=${loop#/dev/} mirror=md0 raid0=md1

# Nothing does I/O by itself while the counts are looked at: no timer of a journal, a log or write-back,
# no bitmaps read ahead.
echo 0 > /proc/sys/vm/dirty_writeback_centisecs
echo 720000 > /proc/sys/fs/xfs/xfssyncd_centisecs
mkfs.xfs -q -K /dev/$mirror
mkdir -p /mnt/mirror
mount -t xfs -o noatime /dev/$mirror /mnt/mirror
# Two file systems on one disk: an image is to lie on the one, the other is the host's own.
ours=${halves}1 theirs=${halves}2
for name in linear stripe raid0 pieces ours theirs; do
  eval "device=\$$name"
  mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/$device
  mkdir -p /mnt/$name
  mount -t ext4 -o noatime,commit=600,no_prefetch_block_bitmaps /dev/$device /mnt/$name
done
sync

names="linear mirror stripe raid0 pieces loop parted mirror_a mirror_b half_a half_b files"
recorded=
for name in $names; do
  eval "device=\$$name"
  recorded="$recorded $device"
  echo "$name=$device" >> /tmp/devices
  # NAME DEVICE NUMBER, for the host.
  echo "device $name $device $(cat /sys/block/$device/dev)"
done
echo "recorded='$recorded' ext4='$linear $stripe $raid0 $pieces'" >> /tmp/devices
echo "file loop $(stat -c '%i' /mnt/files/loop.img) $(cat /sys/block/$files/dev)"
echo "ours=$ours theirs=$theirs" >> /tmp/devices
echo "device halves $halves $(cat /sys/block/$halves/dev)"
