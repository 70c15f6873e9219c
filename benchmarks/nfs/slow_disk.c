/* A slower disk for nfs-ganesha: each read and write of its back end takes DISK_LATENCY nanoseconds longer.

   LD_PRELOAD loads this library into the server. It replaces the two calls with which the back end reaches the file, and
   loads the back end without RTLD_DEEPBIND, which would prefer the C library's calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

void *dlopen(const char *file, int flags)
{
    void *(*original)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");
    return original(file, flags & ~RTLD_DEEPBIND);
}

static void wait_for_the_disk(void)
{
    static __thread int exact;
    long nanoseconds = atol(getenv("DISK_LATENCY"));
    struct timespec span = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    if (!exact) {
        prctl(PR_SET_TIMERSLACK, 1); /* the default adds 0.05 ms to each sleep */
        exact = 1;
    }
    clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
}

ssize_t preadv64(int file, const struct iovec *vectors, int count, off64_t offset)
{
    wait_for_the_disk();
    return syscall(SYS_preadv, file, vectors, count, offset, 0);
}

ssize_t pwritev64(int file, const struct iovec *vectors, int count, off64_t offset)
{
    wait_for_the_disk();
    return syscall(SYS_pwritev, file, vectors, count, offset, 0);
}
