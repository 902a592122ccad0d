//! A guest whose programs are left little memory.

/// Shell that leaves a guest 48 MiB of memory, until `umount /tmp/ballast`. Nothing takes the pages of a tmpfs back.
macro_rules! leave_48_mib {
    () => {
        "mkdir -p /tmp/ballast && mount -t tmpfs -o size=100% none /tmp/ballast && \
         free=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo) && \
         dd if=/dev/zero of=/tmp/ballast/f bs=1M count=$((free - 48))"
    };
}
pub(crate) use leave_48_mib;
