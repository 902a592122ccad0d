# Servers of NFS, SMB and iSCSI in the guest that plays the host, which is their client over the loopback interface.
set -e
export LD_LIBRARY_PATH=/opt/nestrace
load nfsd nfsv4 sch_netem sd_mod crc32c_generic iscsi_tcp iscsi_target_mod
ip link set lo up

# What exportfs and rpc.mountd would say to the kernel. Version 4 alone needs no rpcbind.
mkdir -p /srv/images /mnt/images /var/lib/nfs/v4recovery
mount -t tmpfs -o size=256m served /srv
mkdir -p /srv/images
mount -t nfsd nfsd /proc/fs/nfsd
forever=2147483647
echo "nfsd 127.0.0.1 $forever all" > /proc/net/rpc/auth.unix.ip/channel
# Read and write, without root_squash, no subtree check, fsid=0: the root of version 4.
flags=$((0x0002 | 0x0400 | 0x2000))
echo "all /srv $forever $flags 65534 65534 0" > /proc/net/rpc/nfsd.export/channel
echo "all 1 \\x00000000 $forever /srv" > /proc/net/rpc/nfsd.fh/channel
echo "-2 -3 +4 +4.1 +4.2" > /proc/fs/nfsd/versions
echo 1 > /proc/fs/nfsd/nfsv4gracetime 2> /dev/null || true
echo "tcp 2049" > /proc/fs/nfsd/portlist
echo 4 > /proc/fs/nfsd/threads
echo Y > /proc/fs/nfsd/v4_end_grace 2> /dev/null || true
/usr/bin/mount -i -t nfs4 -o vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1,noatime 127.0.0.1:/images /mnt/images

. /opt/nestrace/smb.sh

# Two disks in memory.
mount -t configfs configfs /sys/kernel/config
target=/sys/kernel/config/target
group=$target/iscsi/iqn.2026-01.org.nestrace:disks/tpgt_1
mkdir -p $target/core/rd_mcp_0 $group/np/127.0.0.1:3260
echo 0 > $group/attrib/authentication
echo 1 > $group/attrib/generate_node_acls
echo 0 > $group/attrib/demo_mode_write_protect
number=0
for name in fast slow; do
  disk=$target/core/rd_mcp_0/$name
  mkdir $disk
  echo rd_pages=4096 > $disk/control
  echo 1 > $disk/enable
  mkdir $group/lun/lun_$number
  ln -s $disk $group/lun/lun_$number/disk
  number=$((number + 1))
done
echo 1 > $group/enable
/opt/nestrace/iscsistart -i iqn.2026-01.org.nestrace:host -t iqn.2026-01.org.nestrace:disks -g 1 \
  -a 127.0.0.1 -p 3260 > /tmp/iscsi.log 2>&1 || { cat /tmp/iscsi.log >&2; exit 1; }
tries=0
until [ "$(cat /sys/block/sd*/device/vendor 2> /dev/null | grep -c LIO-ORG)" = 2 ]; do
  tries=$((tries + 1))
  [ $tries -gt 100 ] && { ls /sys/block >&2; cat /tmp/iscsi.log >&2; exit 1; }
  sleep 0.1
done
recorded=
for block in /sys/block/sd*; do
  grep -q LIO-ORG $block/device/vendor || continue
  # HOST:CHANNEL:TARGET:LUN
  address=$(readlink $block/device)
  case ${address##*:} in
    0) name=fast ;;
    1) name=slow ;;
  esac
  device=${block##*/}
  recorded="$recorded $device"
  echo "iscsi_$name=$device" >> /tmp/devices
  echo "device iscsi-$name $device $(cat $block/dev)"
done
echo "recorded='$recorded'" >> /tmp/devices
