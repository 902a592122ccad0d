#!/bin/busybox sh
# First process of a test guest. Loads what the kernel command line asks for (rig.modules=a,b) and
# then obeys the command channel, a virtio-serial port:
#   host → guest   RUN ID SECONDS BASE64-OF-A-SHELL-SCRIPT
#   guest → host   READY                             once
#                  DONE ID STATUS STDOUT-BYTES STDERR-BYTES, then these bytes
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
ln -sf /proc/mounts /etc/mtab
echo 0 > /proc/sys/kernel/hung_task_timeout_secs 2>/dev/null

# load NAME…: loads modules with what they need; those that are there already are passed over.
cat > /bin/load <<'EOF'
#!/bin/busybox sh
for name in "$@"; do
  [ -f "/lib/load/$name" ] || continue
  while read -r file; do
    module=${file##*/}; module=$(echo "${module%.ko}" | tr - _)
    [ -d "/sys/module/$module" ] || insmod "$file" || echo "load: $file failed" >&2
  done < "/lib/load/$name"
done
EOF
# disk SERIAL: the kernel name of a disk (vda, sdb). Buses are searched in the background: a disk may
# appear seconds after its driver was loaded.
cat > /bin/disk <<'EOF'
#!/bin/busybox sh
tries=0
while [ $tries -lt 80 ]; do
  for block in /sys/block/vd* /sys/block/sd* /sys/block/nvme*; do
    [ -d "$block" ] || continue
    for file in "$block/serial" "$block/device/serial" "$block/device/vpd_pg80"; do
      [ -r "$file" ] && tr -cd 'a-zA-Z0-9_.-' < "$file" | grep -q -x -F -- "$1" && { echo "${block##*/}"; exit 0; }
    done
  done
  tries=$((tries + 1))
  sleep 0.1
done
echo "disk: no disk has the serial $1" >&2
exit 1
EOF
# port NAME: the device of a virtio-serial port.
cat > /bin/port <<'EOF'
#!/bin/busybox sh
for port in /sys/class/virtio-ports/*; do
  [ "$(cat "$port/name")" = "$1" ] && { echo "/dev/${port##*/}"; exit 0; }
done
exit 1
EOF
chmod 755 /bin/load /bin/disk /bin/port

load virtio_pci virtio_console
for word in $(cat /proc/cmdline); do
  case $word in rig.modules=*) load $(echo "${word#rig.modules=}" | tr , ' ') ;; esac
done

tries=0
until channel=$(port org.nestrace.lab.0); do
  tries=$((tries + 1))
  [ $tries -gt 200 ] && { echo "rig: no command channel"; poweroff -f; }
  sleep 0.05
done
exec 3<>"$channel"
echo READY >&3
echo "rig: ready"
obey() { while :; do
  # A port whose host side is not connected reads as end of file.
  if ! read -r verb id seconds script <&3; then sleep 0.05; continue; fi
  [ "$verb" = RUN ] || continue
  echo "$script" | base64 -d > /run/script
  timeout -s KILL "$seconds" sh /run/script > /run/stdout 2> /run/stderr < /dev/null 3>&-
  status=$?
  echo "DONE $id $status $(stat -c %s /run/stdout) $(stat -c %s /run/stderr)" >&3
  cat /run/stdout /run/stderr >&3
done }
obey &
# The first process collects what others leave behind. Told to, it makes way for another one, and commands are obeyed as before.
trap '[ -x /run/successor ] && exec /run/successor' USR1
while :; do wait; done
