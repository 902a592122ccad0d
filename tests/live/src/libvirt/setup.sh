#!/bin/sh
# First process of a private libvirt: namespaces of its own for mounts, processes and the network, so
# that nothing of the system's own libvirt is seen or changed, and that everything ends with it.
# $1: a folder for what libvirt would keep in /etc, /var and /run.
set -e
for part in etc lib log cache run; do mkdir -p "$1/$part"; done
cp -a /etc/libvirt/. "$1/etc/"
rm -rf "$1/etc/qemu/networks" "$1/etc/qemu/autostart"
printf '%s\n' 'security_driver = "none"' 'user = "root"' 'group = "root"' >> "$1/etc/qemu.conf"
# The callers' processes are not seen from here, so polkit could not tell who they are.
printf '%s\n' 'auth_unix_rw = "none"' 'auth_unix_ro = "none"' >> "$1/etc/libvirtd.conf"
mount --bind "$1/etc" /etc/libvirt
mount --bind "$1/lib" /var/lib/libvirt
mount --bind "$1/log" /var/log/libvirt
mount --bind "$1/cache" /var/cache/libvirt
mount -t tmpfs tmpfs /run
mkdir /run/libvirt
mount --bind "$1/run" /run/libvirt
virtlogd &
libvirtd &
# The first process has to collect the daemons' orphans, QEMU among them.
while :; do wait; sleep 1; done
