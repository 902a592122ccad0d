// A QEMU process that was taken over (here: an unprivileged program of that name). Its "BlockBackend" lies in a mapping of a
// file on a FUSE of its own that never answers reads: whoever reads that memory waits for ever.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#include <sys/prctl.h>
__attribute__((noinline, noipa, visibility("default"))) void *blk_aio_preadv(void *blk, long off, void *qiov, int flags, void *cb, void *opaque) { __asm__ volatile("" ::: "memory"); return blk; }
__attribute__((noinline, noipa, visibility("default"))) void block_acct_start(void *a, void *b, long c, int d) { __asm__ volatile("" ::: "memory"); }
static void put(const char *path, const char *text) { int f = open(path, O_WRONLY); if (f >= 0) { write(f, text, strlen(text)); close(f); } }
static void answer(int dev, struct fuse_in_header *in, void *data, size_t n) {
    char out[4096]; struct fuse_out_header h = {sizeof h + n, 0, in->unique};
    memcpy(out, &h, sizeof h); memcpy(out + sizeof h, data, n); write(dev, out, h.len);
}
static void *serve(void *arg) { int dev = (int)(long)arg;
    static char buf[1 << 18];
    for (;;) {
        ssize_t n = read(dev, buf, sizeof buf);
        if (n < 0) { if (errno == EINTR || errno == EAGAIN) continue; _exit(0); }
        struct fuse_in_header *in = (void *)buf;
        if (in->opcode == FUSE_INIT) { struct fuse_init_out o = {0}; o.major = 7; o.minor = 31; o.max_readahead = 4096; o.max_write = 65536; o.max_background = 4; answer(dev, in, &o, sizeof o); }
        else if (in->opcode == FUSE_GETATTR) { struct fuse_attr_out o = {0}; o.attr_valid = 1000; o.attr.ino = 1; o.attr.size = 1 << 20; o.attr.mode = S_IFREG | 0644; o.attr.nlink = 1; answer(dev, in, &o, sizeof o); }
        else if (in->opcode == FUSE_OPEN) { struct fuse_open_out o = {0}; o.fh = 1; answer(dev, in, &o, sizeof o); }
        else if (in->opcode == FUSE_READ) { fprintf(stderr, "fuse: a page was asked for, no answer will come\n"); }
        else if (in->opcode == FUSE_FORGET || in->opcode == FUSE_INTERRUPT) { }
        else { struct fuse_out_header h = {sizeof h, in->opcode == FUSE_FLUSH || in->opcode == FUSE_RELEASE ? 0 : -ENOSYS, in->unique}; write(dev, &h, sizeof h); }
    }
}
int main(int argc, char **argv) {
    if (!strcmp(argv[0], "fuse-server")) { prctl(PR_SET_PDEATHSIG, SIGKILL); serve((void *)atol(argv[1])); }
    char text[256];
    open(getenv("IMAGE"), O_RDWR);
    char place[256]; snprintf(place, sizeof place, "%s/hang", getenv("FOLDER")); close(open(place, O_CREAT | O_RDWR, 0600));
    // The set-uid fusermount of Debian's package fuse (or fuse3) mounts for any user.
    int pair[2]; socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    if (!fork()) { snprintf(text, sizeof text, "%d", pair[1]); setenv("_FUSE_COMMFD", text, 1); execlp("fusermount", "fusermount", "--", place, (char *)0); execlp("fusermount3", "fusermount3", "--", place, (char *)0); _exit(1); }
    char byte, control[CMSG_SPACE(sizeof(int))]; struct iovec v = {&byte, 1}; struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(pair[0], &m, 0) < 1 || !CMSG_FIRSTHDR(&m)) { fprintf(stderr, "no fusermount\n"); return 1; }
    int dev; memcpy(&dev, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof dev);
    char num[16]; snprintf(num, sizeof num, "%d", dev);
    if (!fork()) { execl("/proc/self/exe", "fuse-server", num, (char *)0); _exit(1); }
    close(dev);
    int f = open(place, O_RDONLY); if (f < 0) { perror("open"); return 1; }
    struct stat st; fstat(f, &st); if (st.st_size == 0) fprintf(stderr, "no size\n");
    char *page = mmap((void *)0x10000000, 4096, PROT_READ, MAP_SHARED | MAP_FIXED, f, 0);
    if (page == MAP_FAILED) { perror("mmap"); return 1; }
    fprintf(stderr, "ready\n");
    for (int i = 0;; i++) { usleep(100000); blk_aio_preadv(page, 4096L * i, 0, 0, 0, (void *)0x20000000); }
}
