# Records the workload with nestrace and with blktrace at once; leaves everything in /tmp/recorded.tar.
cd /tmp
. /tmp/devices
. /opt/nestrace/quiet.sh
rm -rf blktrace host.nest recorded.tar before after
mkdir blktrace
watched= traced=
for device in $recorded; do
  watched="$watched --device $device"
  traced="$traced -d /dev/$device"
done
blktrace -b 512 -n 16 $traced -D /tmp/blktrace > blktrace.log 2>&1 &
blktrace=$!
for device in $recorded; do
  tries=0
  until [ -e /sys/kernel/debug/block/$device/trace0 ]; do
    tries=$((tries + 1))
    [ $tries -gt 100 ] && { cat blktrace.log >&2; exit 1; }
    sleep 0.1
  done
done
# The recorder reads the super blocks of ext4 and of what loop devices lie on before it is live.
for device in $ext4; do
  dd if=/dev/$device of=/dev/null bs=4k count=1 2> /dev/null
done
settle
look > rest-before
cut -d' ' -f1 /proc/uptime > /tmp/started
LD_LIBRARY_PATH=/opt/nestrace /opt/nestrace/nestrace record $watched -o host.nest -- sh /opt/nestrace/workload.sh > record.log 2>&1
status=$?
look > rest-after
for device in $recorded; do
  echo "dropped $device $(cat /sys/kernel/debug/block/$device/dropped)"
done
kill -INT $blktrace
wait $blktrace
[ $status = 0 ] && [ -s after ] || { cat record.log >&2; exit 1; }
# Whatever moved while nestrace came up or went down, one of the two may have seen and the other not.
for edge in before after; do
  diff rest-$edge $edge | sed -n 's/^\([-+][a-z]\)/moved \1/p'
done
tar -cf recorded.tar host.nest blktrace
echo "started $(cat started) $(cat begun)"
sed 's/^/before /' before
sed 's/^/after /' after
sed 's/^/said /' record.log
