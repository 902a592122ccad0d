# Makes arrays with parity in the guest that plays the host, and leaves their names in /tmp/devices.
set -e
export LD_LIBRARY_PATH=/opt/nestrace
load dm_mod dm_delay md_mod raid456

# raid NAME LEVEL DEVICE…: without a super block, so that nothing writes but the workload.
raid() {
  name=$1 level=$2
  shift 2
  echo $name > /sys/module/md_mod/parameters/new_array
  cd /sys/block/$name/md
  echo none > metadata_version
  echo $level > level
  echo $# > raid_disks
  echo 65536 > chunk_size
  echo 2 > layout
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

# legs NAME N: the disks NAME-0, NAME-1, …
legs() {
  n=0
  while [ $n -lt $2 ]; do
    disk $1-$n
    n=$((n + 1))
  done
}

names=
# note NAME DEVICE…: `NAME` is the first, `NAME_0`, `NAME_1`, … the others.
note() {
  name=$1
  names="$names $name=$2"
  shift 2
  n=0
  for leg; do
    names="$names ${name}_$n=$leg"
    n=$((n + 1))
  done
}

# Of five members a write of one block reads two old ones, not three; of three it reads one, the other data.
modify=$(legs modify 5)
raid md0 raid5 $modify
note modify md0 $modify
slow=
for leg in $(legs rebuild 3); do
  sectors=$(cat /sys/class/block/$leg/size)
  # Only reads are slow.
  echo "0 $sectors delay /dev/$leg 0 5 /dev/$leg 0 0" | /opt/nestrace/dmsetup create --noudevsync --noudevrules slow-$leg
  slow="$slow dm-$(/opt/nestrace/dmsetup info -c --noheadings -o minor slow-$leg)"
done
raid md1 raid5 $slow
note rebuild md1 $slow
six=$(legs six 4)
raid md2 raid6 $six
note six md2 $six
whole=$(legs whole 3)
raid md3 raid5 $whole
note whole md3 $whole

recorded=
for pair in $names; do
  device=${pair#*=}
  recorded="$recorded $device"
  echo "$pair" >> /tmp/devices
  echo "device ${pair%%=*} $device $(cat /sys/block/$device/dev)"
done
# The devices under dm-delay, which belong to the stack.
recorded="$recorded $(legs rebuild 3 | tr '\n' ' ')"
echo "recorded='$recorded' ext4=" >> /tmp/devices
