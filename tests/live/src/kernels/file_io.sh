# Records a process that does file I/O in every way that QEMU knows: $1 is the detail. A fio by QEMU's
# name is enough for that; it waits until nestrace is live, and the recording ends with it.
cd /tmp
. /tmp/devices
. /opt/nestrace/quiet.sh
rm -rf $1.nest recorded.tar go
mkfifo go
cat > file_io.fio << END
[global]
filename=/mnt/xfs/image.img
size=1m
bs=4k
direct=1
thread
stonewall
[system-calls]
exec_prerun=cat /tmp/go
ioengine=psync
rw=randwrite
fdatasync=32
[vectors]
ioengine=pvsync2
rw=randread
[native]
ioengine=libaio
iodepth=16
iodepth_batch=8
rw=randwrite
[uring]
ioengine=io_uring
iodepth=16
rw=randwrite
fsync=64
END
settle
look > rest-before
/opt/nestrace/qemu-system-x86_64 file_io.fio > fio.log 2>&1 &
fio=$!
LD_LIBRARY_PATH=/opt/nestrace /opt/nestrace/nestrace record --guest pid:$fio --device $second --detail $1 \
  -o $1.nest -- sh -c 'echo > /tmp/go; exec sleep 60' > record.log 2>&1
status=$?
look > rest-after
[ $status = 0 ] || { kill $fio; cat record.log >&2; exit 1; }
wait $fio || { tail -5 fio.log >&2; exit 1; }
tar -cf recorded.tar $1.nest
sed 's/^/before /' rest-before
sed 's/^/after /' rest-after
sed 's/^/said /' record.log
