# Makes stacks of devices in the guest that plays the host, and leaves their names in /tmp/devices: ext4 on a linear volume
# on dm-crypt on a mirror of md with a slow leg; RAID5; a thin volume; stripes, a mirror and a cache of dm; a disk behind
# bcache; loop devices with and without direct I/O.
set -e
export LD_LIBRARY_PATH=/opt/nestrace
load ext4 xfs loop dm_mod dm_crypt dm_delay dm_thin_pool md_mod raid1 raid456 xts ecb bcache dm_mirror dm_cache dm_cache_smq

leg_a=$(disk leg-a)
leg_b=$(disk leg-b)
r5_a=$(disk r5-a)
r5_b=$(disk r5-b)
r5_c=$(disk r5-c)
files=$(disk files)
thin_meta=$(disk thin-meta)
thin_data=$(disk thin-data)
half_a=$(disk half-a)
half_b=$(disk half-b)
origin=$(disk origin)
fast=$(disk fast)
fast_meta=$(disk fast-meta)
backing=$(disk backing)
cache=$(disk cache)

# mapped NAME, its table on stdin: the kernel's name.
mapped() {
  /opt/nestrace/dmsetup create --noudevsync --noudevrules $1
  echo dm-$(/opt/nestrace/dmsetup info -c --noheadings -o minor $1)
}
# raid NAME LEVEL DEVICE…: without a super block, so that nothing writes but what is on it.
raid() {
  name=$1 level=$2
  shift 2
  echo $name > /sys/module/md_mod/parameters/new_array
  cd /sys/block/$name/md
  echo none > metadata_version
  echo $level > level
  echo $# > raid_disks
  [ $level = raid5 ] && echo 65536 > chunk_size && echo 2 > layout
  slot=0
  for member; do
    cat /sys/class/block/$member/dev > new_dev
    kib=$(($(cat /sys/class/block/$member/size) / 2))
    echo $kib > dev-$member/size
    echo $slot > dev-$member/slot
    slot=$((slot + 1))
  done
  echo $kib > component_size
  echo none > resync_start
  echo active > array_state
  cd /
}

sectors=$(cat /sys/class/block/$leg_b/size)
# Only writes are slow.
delay=$(echo "0 $sectors delay /dev/$leg_b 0 0 /dev/$leg_b 0 5" | mapped slow)
raid md0 raid1 $leg_a $delay
mirror=md0
sectors=$(cat /sys/class/block/md0/size)
key=000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
crypt=$(echo "0 $sectors crypt aes-xts-plain64 $key 0 /dev/md0 0" | mapped luks)
linear=$(echo "0 131072 linear /dev/$crypt 0" | mapped plain)
raid md1 raid5 $r5_a $r5_b $r5_c
parity=md1
# Blocks of 64 KiB; a disk of zeros is a pool without volumes.
pool=$(echo "0 131072 thin-pool /dev/$thin_meta /dev/$thin_data 128 0" | mapped pool)
/opt/nestrace/dmsetup message pool 0 'create_thin 0'
thin=$(echo "0 65536 thin /dev/$pool 0" | mapped thin)

# The halves: the first 16 MiB of both are a stripe set, the rest is a mirror in sync.
striped=$(echo "0 65536 striped 2 128 /dev/$half_a 0 /dev/$half_b 0" | mapped striped)
copies=$(echo "0 32768 mirror core 2 1024 nosync 2 /dev/$half_a 32768 /dev/$half_b 32768" | mapped copies)
cached_dm=$(echo "0 65536 cache /dev/$fast_meta /dev/$fast /dev/$origin 128 1 writethrough smq 0" | mapped cached)
/opt/nestrace/make-bcache -B /dev/$backing > /tmp/bcache.log
/opt/nestrace/make-bcache -C /dev/$cache --bucket 64k >> /tmp/bcache.log
for device in $backing $cache; do
  echo /dev/$device > /sys/fs/bcache/register
done
behind=bcache0
tries=0
until [ -e /sys/block/$behind/bcache ] && set=$(echo /sys/fs/bcache/*-*-*) && [ -d "$set" ]; do
  tries=$((tries + 1))
  [ $tries -gt 100 ] && { cat /tmp/bcache.log >&2; exit 1; }
  sleep 0.1
done
echo ${set##*/} > /sys/block/$behind/bcache/attach
# Nothing goes past the cache.
echo 0 > /sys/block/$behind/bcache/sequential_cutoff
echo 0 > $set/congested_read_threshold_us
echo 0 > $set/congested_write_threshold_us

mkfs.xfs -q -K /dev/$files
mkdir -p /mnt/files
mount -t xfs -o noatime /dev/$files /mnt/files
# Written in full: a read of what was never written needs no device.
dd if=/dev/zero of=/mnt/files/direct.img bs=1M count=32 conv=fsync 2> /dev/null
fallocate -l 33554432 /mnt/files/cached.img
direct=$(/usr/bin/losetup --find --show --direct-io=on /mnt/files/direct.img)
cached=$(/usr/bin/losetup --find --show /mnt/files/cached.img)
direct=${direct#/dev/} cached=${cached#/dev/}

echo 0 > /proc/sys/vm/dirty_writeback_centisecs
echo 720000 > /proc/sys/fs/xfs/xfssyncd_centisecs
for name in linear; do
  eval "device=\$$name"
  mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/$device
  mkdir -p /mnt/$name
  mount -t ext4 -o noatime,commit=600,no_prefetch_block_bitmaps /dev/$device /mnt/$name
done
sync

recorded=
for name in linear crypt mirror delay parity thin thin_meta thin_data striped copies half_a half_b cached_dm origin fast fast_meta behind backing cache direct cached leg_a leg_b r5_a r5_b r5_c files; do
  eval "device=\$$name"
  recorded="$recorded $device"
  echo "$name=$device" >> /tmp/devices
  echo "device $name $device $(cat /sys/block/$device/dev)"
done
echo "recorded='$recorded' ext4='$linear'" >> /tmp/devices
