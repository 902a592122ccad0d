# in_folder FOLDER: a load on a file system that makes every event that there is for data.

run_fio() {
  fio /tmp/work.fio > /tmp/fio.log 2>&1 || { tail -5 /tmp/fio.log >&2; exit 1; }
}

# Buffered and direct, small and split, merged at the back and at the front, synced, discarded.
in_folder() {
  cat > /tmp/work.fio << END
[global]
directory=$1
fallocate=none
stonewall
[buffered]
rw=randrw
bs=4k
size=1m
fsync=16
[merged]
rw=write
bs=4k
size=1m
direct=1
ioengine=libaio
iodepth=16
iodepth_batch=16
iodepth_batch_complete_min=16
[backwards]
filename=merged.0.0
rw=write:-8k
bs=4k
size=256k
offset=512k
direct=1
ioengine=libaio
iodepth=16
iodepth_batch=16
iodepth_batch_complete_min=16
[large]
rw=write
bs=2m
size=4m
direct=1
[again]
filename=large.0.0
rw=read
bs=128k
size=4m
END
  run_fio
  rm $1/buffered* && sync && fstrim $1
  rm $1/merged* $1/large*
}
