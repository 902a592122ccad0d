// A process that does what DEEDS names, and waits. Everything here an ordinary user may do.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
// It has QEMU's functions too.
__attribute__((noinline, used)) void *blk_aio_preadv(void *blk) { return blk; }
__attribute__((noinline, used)) void block_acct_start(void *a, void *b) { (void)a; (void)b; }
__attribute__((noinline, used)) void qemu_init(int argc, char **argv) { (void)argc; (void)argv; }
static char place[256];
static const char *in_folder(void) {
    snprintf(place, sizeof place, "%s/s%s", getenv("FOLDER"), getenv("NUMBER"));
    return place;
}
static void *idle(void *arg) { for (;;) pause(); return arg; }
static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd >= 0) { write(fd, text, strlen(text)); close(fd); }
}
static void *answer(void *arg) {
    int listener = (int)(long)arg;
    for (;;) {
        int fd = accept(listener, 0, 0);
        // Half of a greeting, then nonsense without an end.
        static char text[65536];
        memset(text, '[', sizeof text);
        write(fd, "{\"QMP\":{\"version\":{}}}\r\n", 24);
        for (int i = 0; i < 2000; i++) if (write(fd, text, sizeof text) < 0) break;
    }
}
static void do_it(const char *deed, char **argv) {
    if (!strcmp(deed, "fds")) { for (int i = 0; i < 900; i++) open("/dev/zero", O_RDWR); }
    else if (!strcmp(deed, "pipes")) { int p[2]; for (int i = 0; i < 400; i++) pipe(p); }
    else if (!strcmp(deed, "sockets")) { for (int i = 0; i < 400; i++) socket(AF_UNIX, SOCK_STREAM, 0); }
    else if (!strcmp(deed, "maps")) { for (int i = 0; i < 30000; i++) mmap(0, 4096, i & 1 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
    else if (!strcmp(deed, "threads")) { pthread_t t; for (int i = 0; i < 50; i++) pthread_create(&t, 0, idle, 0); }
    else if (!strcmp(deed, "undumpable")) prctl(PR_SET_DUMPABLE, 0);
    else if (!strcmp(deed, "comm")) prctl(PR_SET_NAME, ") R 1 (\n\033[2J");
    else if (!strcmp(deed, "stop")) raise(SIGSTOP);
    else if (!strcmp(deed, "children")) { for (int i = 0; i < 5; i++) if (!fork()) idle(0); }
    else if (!strcmp(deed, "orphans")) { for (int i = 0; i < 5; i++) if (!fork()) _exit(0); }
    else if (!strcmp(deed, "churn")) { if (!fork()) for (;;) { if (!fork()) _exit(0); usleep(3000); while (waitpid(-1, 0, 1) > 0); } }
    else if (!strcmp(deed, "exec")) {
        // One at a time: each is another program a moment later, and gone the next.
        if (!fork()) for (;;) {
            int pid = fork();
            if (!pid) { setenv("DEEDS", "", 1); execv("/proc/self/exe", argv); }
            usleep(5000);
            kill(pid, SIGKILL);
            waitpid(pid, 0, 0);
        }
    }
    else if (!strcmp(deed, "locked")) {
        int fd = open(in_folder(), O_CREAT | O_RDWR, 0666);
        struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 104};
        fcntl(fd, F_OFD_SETLK, &lock);
        ftruncate(fd, 1L << 40);
    }
    else if (!strcmp(deed, "deleted")) { open(in_folder(), O_CREAT | O_RDWR, 0666); unlink(place); }
    else if (!strcmp(deed, "fifo")) { mkfifo(in_folder(), 0666); open(place, O_RDWR); }
    else if (!strcmp(deed, "link")) symlink("/etc/shadow", in_folder());
    else if (!strcmp(deed, "namespace")) {
        char line[64]; unsigned uid = getuid();
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID)) return;
        snprintf(line, sizeof line, "0 %u 1", uid);
        put("/proc/self/setgroups", "deny"); put("/proc/self/uid_map", line); put("/proc/self/gid_map", line);
        mount(0, "/", 0, MS_REC | MS_PRIVATE, 0);
        mount("t", "/tmp", "tmpfs", 0, 0);
        mkdir("/tmp/root", 0755); chroot("/tmp/root");
    }
    else {
        // listen, deaf, liar: a monitor that answers never, or too much.
        struct sockaddr_un address = {AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        strncpy(address.sun_path, in_folder(), sizeof address.sun_path - 1);
        bind(fd, (struct sockaddr *)&address, sizeof address);
        if (strcmp(deed, "deaf")) listen(fd, 1);
        pthread_t t;
        if (!strcmp(deed, "liar")) pthread_create(&t, 0, answer, (void *)(long)fd);
    }
}
int main(int argc, char **argv) {
    (void)argc;
    signal(SIGPIPE, SIG_IGN);
    char deeds[512], *rest = 0;
    const char *given = getenv("DEEDS");
    strncpy(deeds, given ? given : "", sizeof deeds - 1);
    for (char *deed = strtok_r(deeds, ",", &rest); deed; deed = strtok_r(0, ",", &rest)) do_it(deed, argv);
    for (;;) pause();
}
