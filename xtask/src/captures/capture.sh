# Traces $load on $device with blktrace; leaves /tmp/capture.tar.
set -e
queue=/sys/block/$device/queue
echo "$scheduler" > $queue/scheduler
echo "$max_sectors_kb" > $queue/max_sectors_kb
rm -rf /tmp/capture /tmp/capture.tar
mkdir /tmp/capture
cd /tmp/capture
blktrace -b 512 -n 16 -d "/dev/$device" -o gt > /tmp/blktrace.log 2>&1 &
blktrace=$!
tries=0
until [ -e "/sys/kernel/debug/block/$device/trace0" ]; do
  tries=$((tries + 1))
  [ $tries -gt 100 ] && { cat /tmp/blktrace.log >&2; exit 1; }
  sleep 0.1
done
# shellcheck disable=SC2086
fio --name=load --filename="/dev/$device" --direct=1 --randseed=7 --allow_mounted_write=1 $load > /tmp/fio.log 2>&1 || { cat /tmp/fio.log >&2; exit 1; }
dropped=$(cat "/sys/kernel/debug/block/$device/dropped")
kill -INT $blktrace
wait $blktrace || true
[ "$dropped" = 0 ] || { echo "blktrace dropped $dropped events" >&2; exit 1; }
tar -cf /tmp/capture.tar gt.blktrace.*
