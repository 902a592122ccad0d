# Samba of this machine in the guest that plays the host, and its share of files in memory at /mnt/share.
load 9pnet_virtio 9p md5 cmac ecb sha512_generic ghash-generic gcm ccm ctr nls_utf8 cifs
mkdir -p /mnt/host /srv/samba /mnt/share
mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=262144,ro root /mnt/host
# A mount of its own, so that /mnt/host can go.
mount -o bind /mnt/host /srv/samba
mount -t tmpfs -o size=128m samba /srv/samba/run
mount -t proc proc /srv/samba/proc
mkdir -p /srv/samba/run/samba/images
cat > /srv/samba/run/samba/smb.conf << 'END'
[global]
server role = standalone server
server min protocol = SMB3
interfaces = lo
bind interfaces only = yes
smb ports = 445
disable netbios = yes
load printers = no
disable spoolss = yes
private dir = /run/samba
lock directory = /run/samba
state directory = /run/samba
cache directory = /run/samba
pid directory = /run/samba
ncalrpc dir = /run/samba/ncalrpc
log file = /run/samba/log
[images]
path = /run/samba/images
read only = no
END
samba() {
  env -u LD_LIBRARY_PATH chroot /srv/samba "$@" > /tmp/smb.log 2>&1 || { cat /tmp/smb.log >&2; exit 1; }
}
printf 'nestrace\nnestrace\n' | samba /usr/bin/smbpasswd -c /run/samba/smb.conf -s -a root
samba /usr/sbin/smbd --daemon --configfile=/run/samba/smb.conf
tries=0
until /usr/bin/mount -i -t cifs -o ip=127.0.0.1,username=root,password=nestrace,vers=3.1.1 //127.0.0.1/images /mnt/share \
  2> /tmp/smb.log; do
  tries=$((tries + 1))
  [ $tries -gt 100 ] && { cat /tmp/smb.log /srv/samba/run/samba/log >&2; exit 1; }
  sleep 0.1
done
