# start_qemu ARGUMENT…: this machine's own QEMU in the guest that plays the host, by the name "inner". Its guest never
# runs: the monitor, on descriptor 3, makes the requests of its disks. Its answers are in /tmp/qemu.log.
start_qemu() {
  load 9pnet_virtio 9p
  mkdir -p /mnt/host
  [ -d /mnt/host/usr ] || mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=262144,ro root /mnt/host || exit 1
  mkfifo /tmp/monitor
  libraries=/mnt/host/lib/x86_64-linux-gnu:/mnt/host/usr/lib/x86_64-linux-gnu
  LD_LIBRARY_PATH=$libraries /mnt/host/usr/bin/qemu-system-x86_64 -name guest=inner -S -machine pc,accel=tcg \
    -m 32 -nodefaults -display none -L /mnt/host/usr/share/qemu -L /mnt/host/usr/share/seabios \
    "$@" -qmp stdio < /tmp/monitor > /tmp/qemu.log 2>&1 &
  qemu=$!
  exec 3> /tmp/monitor
  echo '{"execute":"qmp_capabilities"}' >&3
  tries=0
  until grep -q '"return"' /tmp/qemu.log; do
    tries=$((tries + 1))
    [ $tries -gt 600 ] && { cat /tmp/qemu.log >&2; exit 1; }
    kill -0 $qemu || { cat /tmp/qemu.log >&2; exit 1; }
    sleep 0.1
  done
}

monitor() {
  echo '{"execute":"human-monitor-command","arguments":{"command-line":"'"$1"'"}}' >&3
}

# requests DISK OPERATION NUMBER BYTES DISTANCE: that many reads or writes, each at that distance from the last.
requests() {
  n=0
  while [ $n -lt $3 ]; do
    monitor "qemu-io $1 \\\"$2 $((n * $5)) $4\\\""
    n=$((n + 1))
  done
}

# done_requests COUNTS DISKS: waits until so many disks have these counts.
done_requests() {
  tries=0
  until [ "$(grep -o "$1" /tmp/qemu.log | wc -l)" = $2 ]; do
    tries=$((tries + 1))
    [ $tries -gt 600 ] && exit 1
    sleep 0.1
  done
}

end_qemu() {
  echo '{"execute":"quit"}' >&3
  wait $qemu
  umount /mnt/host
}
