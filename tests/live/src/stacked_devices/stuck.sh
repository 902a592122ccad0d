# A QEMU whose image lies on a file system over dm, and what nestrace says of it while the device is suspended: a line of JSON
# without and one with the file system frozen by that. The monitor makes the requests; the guest never runs.
cd /tmp
. /tmp/devices
load 9pnet_virtio 9p
mkdir -p /mnt/host
mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=262144,ro root /mnt/host || exit 1
dd if=/dev/zero of=/mnt/linear/stuck.img bs=1M count=8 conv=fsync 2> /dev/null
mkfifo stuck-monitor
libraries=/mnt/host/lib/x86_64-linux-gnu:/mnt/host/usr/lib/x86_64-linux-gnu
LD_LIBRARY_PATH=$libraries /mnt/host/usr/bin/qemu-system-x86_64 -name guest=inner -S -machine pc,accel=tcg \
  -m 32 -nodefaults -display none -L /mnt/host/usr/share/qemu -L /mnt/host/usr/share/seabios \
  -drive file=/mnt/linear/stuck.img,if=none,id=vda,format=raw,cache=none,aio=io_uring \
  -device virtio-blk-pci,drive=vda,id=vda -qmp unix:/tmp/stuck-qmp,server=on,wait=off -qmp stdio < stuck-monitor > stuck.log 2>&1 &
qemu=$!
exec 3> stuck-monitor
tries=0
echo '{"execute":"qmp_capabilities"}' >&3
until grep -q '"return"' stuck.log; do
  tries=$((tries + 1))
  [ $tries -gt 600 ] && { cat stuck.log >&2; exit 1; }
  kill -0 $qemu || { cat stuck.log >&2; exit 1; }
  sleep 0.1
done
export LD_LIBRARY_PATH=/opt/nestrace
status=0
for how in --nolockfs ''; do
  /opt/nestrace/dmsetup suspend --noudevsync $how linear || status=1
  echo '{"execute":"human-monitor-command","arguments":{"command-line":"qemu-io vda \"aio_write -P 7 0 16384\""}}' >&3
  sleep 1
  /opt/nestrace/nestrace stuck --json > stuck.json || status=1
  tr -d '\n' < stuck.json
  echo
  /opt/nestrace/dmsetup resume --noudevsync linear || status=1
  sleep 1
done
echo '{"execute":"quit"}' >&3
wait $qemu
umount /mnt/host
exit $status
