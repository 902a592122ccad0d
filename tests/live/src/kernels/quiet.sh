# The kernel's counts of the recorded devices, and waiting until they stand still.

look() {
  for device in $recorded; do
    echo "$device $(cat /sys/block/$device/stat)"
  done
}

# A sync is I/O itself (ext4 flushes the device at each), so one, and then a wait.
settle() {
  sync
  last=
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    now=$(look)
    [ "$now" = "$last" ] && return
    last=$now
    sleep 0.4
  done
  echo "the devices do not come to rest" >&2
  exit 1
}
