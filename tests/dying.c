// Preloaded into a writer: kills it before its n-th call that changes a file below a folder, and half-way through writes.
//
// Shards of Lance and Vortex and the commits of Lance are made by native code, past every seam of ours; all of it asks libc.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long left = -1;   // steps until death; below 0 nobody dies
static atomic_long steps = 0;
static atomic_int armed = 0;
static char root[4096];

void dying_arm(const char *folder, long at) {
    strncpy(root, folder, sizeof root - 1);
    atomic_store(&steps, 0);
    atomic_store(&left, at);
    atomic_store(&armed, 1);
}

long dying_steps(void) {
    atomic_store(&armed, 0);
    return atomic_load(&steps);
}

static void step(void) {
    if (atomic_fetch_add(&steps, 1) == atomic_load(&left)) kill(getpid(), SIGKILL);
}

static int ours(int fd) {
    struct stat status;
    char link[64], path[4096];
    if (!atomic_load(&armed) || fstat(fd, &status) || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strncmp(path, root, strlen(root)) == 0;
}

static int here(const char *path) { return atomic_load(&armed) && path && strncmp(path, root, strlen(root)) == 0; }

static int here_at(int folder, const char *path) {
    return atomic_load(&armed) && path && (path[0] == '/' ? here(path) : folder != AT_FDCWD && ours(folder));
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (!ours(fd) || size < 2) return real(fd, data, size);
    step();
    ssize_t half = real(fd, data, size / 2);
    step();
    if (half < 0 || (size_t)half < size / 2) return half;
    ssize_t rest = real(fd, (const char *)data + half, size - half);
    return rest < 0 ? half : half + rest;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    if (ours(fd)) step();
    return real(fd, parts, count);
}

#define PWRITE(name, offset) \
    ssize_t name(int fd, const void *data, size_t size, offset at) { \
        REAL(ssize_t, #name, int, const void *, size_t, offset); \
        if (ours(fd)) step(); \
        return real(fd, data, size, at); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define ON_FD(name) \
    int name(int fd) { \
        REAL(int, #name, int); \
        if (!ours(fd)) return real(fd); \
        step(); \
        return 0; /* what is synced makes no difference to a process that is killed */ \
    }
ON_FD(fsync)
ON_FD(fdatasync)

#define TRUNCATE(name, offset) \
    int name(int fd, offset size) { \
        REAL(int, #name, int, offset); \
        if (ours(fd)) step(); \
        return real(fd, size); \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define TWO_PATHS(name) \
    int name(const char *from, const char *to) { \
        REAL(int, #name, const char *, const char *); \
        if (here(to)) step(); \
        return real(from, to); \
    }
TWO_PATHS(rename)
TWO_PATHS(link)

int renameat(int one, const char *from, int two, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    if (here_at(two, to)) step();
    return real(one, from, two, to);
}

int renameat2(int one, const char *from, int two, const char *to, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    if (here_at(two, to)) step();
    return real(one, from, two, to, flags);
}

int linkat(int one, const char *from, int two, const char *to, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    if (here_at(two, to)) step();
    return real(one, from, two, to, flags);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    if (here(path)) step();
    return real(path);
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    if (here_at(folder, path)) step();
    return real(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    if (here(path)) step();
    return real(path, mode);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        if (flags & (O_CREAT | O_TRUNC) && here(path)) step(); \
        return real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(int, #name, int, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        if (flags & (O_CREAT | O_TRUNC) && here_at(folder, path)) step(); \
        return real(folder, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)
