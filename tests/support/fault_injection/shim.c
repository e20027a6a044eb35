/* Shim between a program and its disk (LD_PRELOAD): records what becomes durable, and makes the disk slow or fail.

   TWINBUS_SHIM_ROOT     the folder to watch: an absolute path without symbolic links. Other files are not affected.
   TWINBUS_SHIM_TRACE    a file outside of the root, which gets a record of every change and sync under the root.
                         power_cut.py reads it after the process was killed, and leaves only durable data in the root.
   TWINBUS_SHIM_CONTROL  a file of rules, mapped into memory: shim.py may change them at any time.

   A record is appended with one writev to a file opened with O_APPEND, so threads and forked processes need no lock. It
   is in the trace once the call has returned, so SIGKILL cannot undo it. The order of records:

   - A change is recorded after it was made. A sync that begins later covers it; a concurrent sync may not.
   - A sync is recorded twice: before it begins, and when it has succeeded or failed. It covers the changes recorded
     before it began.
   - Files are identified by their inodes, and a new file may get the inode of a file that was just deleted. Therefore
     only one name at a time is created, changed or removed, and recorded before the next.

   sync_file_range makes nothing durable and is not intercepted. Writes by stdio or through a mapping are not seen, so
   they are lost in every power cut: the databases use neither, and a test compares the trace with the disk. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* The libc function that ours replaces; looked up once. */
#define REAL(name)                                                                                                     \
    ({                                                                                                                 \
        static _Atomic(void *) found;                                                                                  \
        if (!found)                                                                                                    \
            found = dlsym(RTLD_NEXT, #name);                                                                           \
        (__typeof__(&name))found;                                                                                      \
    })

/* -------------------------------------------------------------------------------------- layouts shared with Python */

enum kind { MADE_FILE, WROTE, TRUNCATED, SYNC_BEGUN, SYNC_DONE, SYNC_FAILED, ALL_SYNCED, RENAMED, UNLINKED, LINKED, MADE_FOLDER };

struct record {
    uint32_t kind;
    uint32_t thread;
    uint64_t inode;
    int64_t offset;        /* offset of a write, or the new length of a truncation */
    uint32_t path_bytes;
    uint32_t second_bytes; /* length of the written bytes, or of the second path */
};

enum action { OFF, DELAY_SYNC, FAIL_SYNC, FAIL_WRITE };

enum { RULES = 16, FOLDER_BYTES = 1000 };

struct rule {
    _Atomic int32_t action;
    _Atomic int32_t delay_ms;
    _Atomic int32_t times; /* remaining applications; below 0: unlimited */
    _Atomic int32_t hits;
    char folder[FOLDER_BYTES]; /* applies to the folder and everything in it */
};

static struct rule *rules;
static char root[PATH_MAX];
static int trace = -1;

/* ------------------------------------------------------------------------------------------------ start, and forks */

static __thread uint32_t own_thread;
static pthread_mutex_t position_locks[64], names_lock;

static void forget_parent(void) {
    own_thread = 0;
    pthread_mutex_init(&names_lock, NULL);
    for (size_t i = 0; i < sizeof position_locks / sizeof *position_locks; i++)
        pthread_mutex_init(&position_locks[i], NULL);
}

static void die(const char *why) {
    dprintf(2, "shim: %s: %s\n", why, strerror(errno));
    abort();
}

__attribute__((constructor)) static void start(void) {
    const char *root_name = getenv("TWINBUS_SHIM_ROOT"), *trace_name = getenv("TWINBUS_SHIM_TRACE");
    const char *control_name = getenv("TWINBUS_SHIM_CONTROL");
    forget_parent();
    pthread_atfork(NULL, NULL, forget_parent);
    if (!root_name || strlen(root_name) >= sizeof root)
        return;
    if (trace_name) {
        int low = REAL(open)(trace_name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        trace = low < 0 ? -1 : REAL(fcntl)(low, F_DUPFD_CLOEXEC, 500); /* above the descriptors that programs use */
        if (trace < 0)
            die(trace_name);
        REAL(close)(low);
    }
    if (control_name) {
        int control = REAL(open)(control_name, O_RDWR | O_CLOEXEC);
        if (control < 0)
            die(control_name);
        rules = mmap(NULL, RULES * sizeof *rules, PROT_READ | PROT_WRITE, MAP_SHARED, control, 0);
        if (rules == MAP_FAILED)
            die(control_name);
        REAL(close)(control);
    }
    strcpy(root, root_name);
}

/* ------------------------------------------------------------------------------------------------------ the records */

static void record(enum kind kind, uint64_t inode, int64_t offset, const char *path, const void *second, size_t second_bytes) {
    int before = errno;
    if (trace < 0)
        return;
    if (!own_thread)
        own_thread = syscall(SYS_gettid);
    struct record head = {kind, own_thread, inode, offset, path ? strlen(path) : 0, second_bytes};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)path, head.path_bytes}, {(void *)second, second_bytes}};
    ssize_t whole = sizeof head + head.path_bytes + second_bytes;
    if (REAL(writev)(trace, parts, 3) != whole)
        die("the trace cannot be written");
    errno = before;
}

/* --------------------------------------------------------------------------------------- which descriptors are ours */

enum state { UNKNOWN, FOREIGN, FILE_OF_OURS, FOLDER_OF_OURS };

enum { DESCRIPTORS = 65536 };

static struct {
    _Atomic uint64_t inode;
    _Atomic int state;
    _Atomic int is_synchronous; /* O_SYNC or O_DSYNC: each write is also a sync */
} descriptors[DESCRIPTORS];

static int is_under(const char *folder, const char *path) {
    size_t length = strlen(folder);
    return length && !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

/* Current path of an open file. Returns 0 if the path is unknown. */
static int path_of(int fd, char *path) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0;
}

static enum state classify(int fd) {
    struct stat status;
    char path[PATH_MAX];
    enum state state = FOREIGN;
    int before = errno;
    if (!fstat(fd, &status) && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) && path_of(fd, path) && is_under(root, path)) {
        state = S_ISDIR(status.st_mode) ? FOLDER_OF_OURS : FILE_OF_OURS;
        descriptors[fd].inode = status.st_ino;
        descriptors[fd].is_synchronous = !!(REAL(fcntl)(fd, F_GETFL) & O_DSYNC); /* O_SYNC contains it */
    }
    descriptors[fd].state = state;
    errno = before;
    return state;
}

/* The file of a descriptor. Descriptors under the root are checked each time: they may have been closed unseen. */
static enum state state_of(int fd) {
    struct stat status;
    if (!*root || fd < 0 || fd >= DESCRIPTORS)
        return FOREIGN;
    enum state state = descriptors[fd].state;
    if (state == FOREIGN)
        return state;
    int before = errno;
    int is_known = state != UNKNOWN && !fstat(fd, &status) && status.st_ino == descriptors[fd].inode;
    errno = before;
    return is_known ? state : classify(fd);
}

static void forget(int fd) {
    if (fd >= 0 && fd < DESCRIPTORS)
        descriptors[fd].state = UNKNOWN;
}

/* -------------------------------------------------------------------------------------------------------- the rules */

/* Apply the rule with this action to an open file once, and return it; NULL if there is none. */
static struct rule *applying(int fd, enum action action) {
    char path[PATH_MAX] = "";
    for (struct rule *rule = rules; rule && rule < rules + RULES; rule++) {
        if (rule->action != (int)action || (!*path && !path_of(fd, path)))
            continue;
        if (!is_under(rule->folder, path))
            continue;
        int times = rule->times;
        while (times > 0 && !atomic_compare_exchange_weak(&rule->times, &times, times - 1))
            ;
        if (times) {
            rule->hits++;
            return rule;
        }
    }
    return NULL;
}

static void pause_ms(int delay_ms) {
    struct timespec left = {delay_ms / 1000, delay_ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

/* ------------------------------------------------------------------------------------------------------------ syncs */

static int nothing(int fd) {
    (void)fd;
    return 0;
}

static int sync_of(int fd, int (*real)(int)) {
    if (state_of(fd) <= FOREIGN)
        return real(fd);
    uint64_t inode = descriptors[fd].inode;
    record(SYNC_BEGUN, inode, 0, NULL, NULL, 0);
    struct rule *delay = applying(fd, DELAY_SYNC);
    if (delay && delay->delay_ms)
        pause_ms(delay->delay_ms);
    int result = -1;
    if (applying(fd, FAIL_SYNC))
        errno = EIO;
    else
        result = real(fd);
    record(result ? SYNC_FAILED : SYNC_DONE, inode, 0, NULL, NULL, 0);
    return result;
}

EXPORT int fsync(int fd) { return sync_of(fd, REAL(fsync)); }

EXPORT int fdatasync(int fd) { return sync_of(fd, REAL(fdatasync)); }

EXPORT void sync(void) {
    record(SYNC_BEGUN, 0, 0, NULL, NULL, 0);
    REAL(sync)();
    record(ALL_SYNCED, 0, 0, NULL, NULL, 0);
}

EXPORT int syncfs(int fd) {
    record(SYNC_BEGUN, 0, 0, NULL, NULL, 0);
    int result = REAL(syncfs)(fd);
    if (!result)
        record(ALL_SYNCED, 0, 0, NULL, NULL, 0);
    return result;
}

/* ----------------------------------------------------------------------------------------------------------- writes */

/* The offset of a write that moves the file's position is known only afterwards, so such writes run one at a time. */
static pthread_mutex_t *position_lock(int fd) { return &position_locks[fd % 64]; }

static ssize_t finish(int fd, ssize_t result) {
    if (result >= 0 && descriptors[fd].is_synchronous && sync_of(fd, nothing))
        return -1;
    return result;
}

static int is_full(int fd) {
    if (!applying(fd, FAIL_WRITE))
        return 0;
    errno = ENOSPC;
    return 1;
}

static void record_vector(int fd, int64_t offset, const struct iovec *parts, int count, ssize_t written) {
    for (int i = 0; i < count && written > 0; i++) {
        size_t size = parts[i].iov_len < (size_t)written ? parts[i].iov_len : (size_t)written;
        record(WROTE, descriptors[fd].inode, offset, NULL, parts[i].iov_base, size);
        offset += size;
        written -= size;
    }
}

/* Data copied inside the kernel is read back from the file, up to the current position. */
static void record_copied(int fd, int64_t end, ssize_t written) {
    char link[40], data[65536];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int copy = REAL(open)(link, O_RDONLY | O_CLOEXEC);
    if (copy < 0)
        die("what was copied cannot be read");
    for (int64_t at = end - written; at < end;) {
        ssize_t size = pread(copy, data, end - at < (int64_t)sizeof data ? end - at : (int64_t)sizeof data, at);
        if (size <= 0)
            break;
        record(WROTE, descriptors[fd].inode, at, NULL, data, size);
        at += size;
    }
    REAL(close)(copy);
}

EXPORT ssize_t write(int fd, const void *data, size_t size) {
    if (state_of(fd) != FILE_OF_OURS)
        return REAL(write)(fd, data, size);
    if (is_full(fd))
        return -1;
    pthread_mutex_lock(position_lock(fd));
    ssize_t result = REAL(write)(fd, data, size);
    if (result > 0)
        record(WROTE, descriptors[fd].inode, lseek(fd, 0, SEEK_CUR) - result, NULL, data, result);
    pthread_mutex_unlock(position_lock(fd));
    return finish(fd, result);
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (state_of(fd) != FILE_OF_OURS)
        return REAL(writev)(fd, parts, count);
    if (is_full(fd))
        return -1;
    pthread_mutex_lock(position_lock(fd));
    ssize_t result = REAL(writev)(fd, parts, count);
    if (result > 0)
        record_vector(fd, lseek(fd, 0, SEEK_CUR) - result, parts, count, result);
    pthread_mutex_unlock(position_lock(fd));
    return finish(fd, result);
}

#define PWRITE(name)                                                                                                   \
    EXPORT ssize_t name(int fd, const void *data, size_t size, off_t offset) {                                         \
        if (state_of(fd) != FILE_OF_OURS)                                                                              \
            return REAL(name)(fd, data, size, offset);                                                                 \
        if (is_full(fd))                                                                                               \
            return -1;                                                                                                 \
        ssize_t result = REAL(name)(fd, data, size, offset);                                                           \
        if (result > 0)                                                                                                \
            record(WROTE, descriptors[fd].inode, offset, NULL, data, result);                                          \
        return finish(fd, result);                                                                                     \
    }

PWRITE(pwrite)
PWRITE(pwrite64)

#define PWRITEV(name)                                                                                                  \
    EXPORT ssize_t name(int fd, const struct iovec *parts, int count, off_t offset) {                                  \
        if (state_of(fd) != FILE_OF_OURS)                                                                              \
            return REAL(name)(fd, parts, count, offset);                                                               \
        if (is_full(fd))                                                                                               \
            return -1;                                                                                                 \
        ssize_t result = REAL(name)(fd, parts, count, offset);                                                         \
        if (result > 0)                                                                                                \
            record_vector(fd, offset, parts, count, result);                                                           \
        return finish(fd, result);                                                                                     \
    }

PWRITEV(pwritev)
PWRITEV(pwritev64)

#define PWRITEV2(name)                                                                                                 \
    EXPORT ssize_t name(int fd, const struct iovec *parts, int count, off_t offset, int flags) {                       \
        if (state_of(fd) != FILE_OF_OURS)                                                                              \
            return REAL(name)(fd, parts, count, offset, flags);                                                        \
        if (is_full(fd))                                                                                               \
            return -1;                                                                                                 \
        ssize_t result = REAL(name)(fd, parts, count, offset, flags);                                                  \
        if (result > 0 && offset >= 0)                                                                                 \
            record_vector(fd, offset, parts, count, result);                                                           \
        return finish(fd, result);                                                                                     \
    }

PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

#define SENDFILE(name)                                                                                                 \
    EXPORT ssize_t name(int to, int from, off_t *offset, size_t size) {                                                \
        if (state_of(to) != FILE_OF_OURS)                                                                              \
            return REAL(name)(to, from, offset, size);                                                                 \
        if (is_full(to))                                                                                               \
            return -1;                                                                                                 \
        pthread_mutex_lock(position_lock(to));                                                                         \
        ssize_t result = REAL(name)(to, from, offset, size);                                                           \
        if (result > 0)                                                                                                \
            record_copied(to, lseek(to, 0, SEEK_CUR), result);                                                         \
        pthread_mutex_unlock(position_lock(to));                                                                       \
        return finish(to, result);                                                                                     \
    }

SENDFILE(sendfile)
SENDFILE(sendfile64)

EXPORT ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t size, unsigned flags) {
    if (state_of(to) != FILE_OF_OURS)
        return REAL(copy_file_range)(from, from_at, to, to_at, size, flags);
    if (is_full(to))
        return -1;
    pthread_mutex_lock(position_lock(to));
    ssize_t result = REAL(copy_file_range)(from, from_at, to, to_at, size, flags);
    if (result > 0)
        record_copied(to, to_at ? *to_at : lseek(to, 0, SEEK_CUR), result);
    pthread_mutex_unlock(position_lock(to));
    return finish(to, result);
}

/* ---------------------------------------------------------------------------------------------------------- lengths */

static int truncated(int fd, int result) {
    struct stat status;
    if (!result && state_of(fd) == FILE_OF_OURS && !fstat(fd, &status))
        record(TRUNCATED, status.st_ino, status.st_size, NULL, NULL, 0);
    return result;
}

EXPORT int ftruncate(int fd, off_t length) { return truncated(fd, REAL(ftruncate)(fd, length)); }

EXPORT int ftruncate64(int fd, off_t length) { return truncated(fd, REAL(ftruncate64)(fd, length)); }

/* Allocated space is zeros, like a truncation to a greater length; with FALLOC_FL_KEEP_SIZE nothing changes. */
EXPORT int fallocate(int fd, int mode, off_t offset, off_t length) {
    return truncated(fd, REAL(fallocate)(fd, mode, offset, length));
}

EXPORT int fallocate64(int fd, int mode, off_t offset, off_t length) {
    return truncated(fd, REAL(fallocate64)(fd, mode, offset, length));
}

EXPORT int posix_fallocate(int fd, off_t offset, off_t length) {
    return truncated(fd, REAL(posix_fallocate)(fd, offset, length));
}

EXPORT int posix_fallocate64(int fd, off_t offset, off_t length) {
    return truncated(fd, REAL(posix_fallocate64)(fd, offset, length));
}

#define TRUNCATE(name)                                                                                                 \
    EXPORT int name(const char *path, off_t length) {                                                                  \
        int result = REAL(name)(path, length), fd;                                                                     \
        if (!result && trace >= 0 && (fd = REAL(open)(path, O_RDONLY | O_CLOEXEC)) >= 0) {                             \
            forget(fd);                                                                                                \
            truncated(fd, 0);                                                                                          \
            forget(fd);                                                                                                \
            REAL(close)(fd);                                                                                           \
        }                                                                                                              \
        return result;                                                                                                 \
    }

TRUNCATE(truncate)
TRUNCATE(truncate64)

/* ---------------------------------------------------------------------------------------------- opening and closing */

/* Lock the names for a call that may change them, and unlock them after its record was written. */
#define WITH_NAMES(call)                                                                                               \
    ({                                                                                                                 \
        pthread_mutex_lock(&names_lock);                                                                               \
        __typeof__(call) result_ = (call);                                                                             \
        pthread_mutex_unlock(&names_lock);                                                                             \
        result_;                                                                                                       \
    })

static int opened(int fd, int flags) {
    char path[PATH_MAX];
    forget(fd);
    if (fd < 0 || state_of(fd) != FILE_OF_OURS || !path_of(fd, path))
        return fd;
    if (flags & O_CREAT)
        record(MADE_FILE, descriptors[fd].inode, 0, path, NULL, 0);
    if (flags & O_TRUNC && (flags & O_ACCMODE) != O_RDONLY)
        record(TRUNCATED, descriptors[fd].inode, 0, NULL, NULL, 0);
    return fd;
}

static mode_t mode_in(int flags, va_list more) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
}

#define OPEN(name)                                                                                                     \
    EXPORT int name(const char *path, int flags, ...) {                                                                \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = mode_in(flags, more);                                                                            \
        va_end(more);                                                                                                  \
        if (!(flags & O_CREAT)) /* may block, as for a pipe */                                                         \
            return opened(REAL(name)(path, flags, mode), flags);                                                       \
        return WITH_NAMES(opened(REAL(name)(path, flags, mode), flags));                                               \
    }

OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
    EXPORT int name(int folder, const char *path, int flags, ...) {                                                    \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = mode_in(flags, more);                                                                            \
        va_end(more);                                                                                                  \
        if (!(flags & O_CREAT))                                                                                        \
            return opened(REAL(name)(folder, path, flags, mode), flags);                                               \
        return WITH_NAMES(opened(REAL(name)(folder, path, flags, mode), flags));                                       \
    }

OPENAT(openat)
OPENAT(openat64)

/* The compiler generates this call for an open without a mode. */
EXPORT int __open_2(const char *path, int flags) { return opened(REAL(open)(path, flags), flags); }
EXPORT int __open64_2(const char *path, int flags) { return opened(REAL(open64)(path, flags), flags); }
EXPORT int __openat_2(int folder, const char *path, int flags) { return opened(REAL(openat)(folder, path, flags), flags); }
EXPORT int __openat64_2(int folder, const char *path, int flags) { return opened(REAL(openat64)(folder, path, flags), flags); }

EXPORT int creat(const char *path, mode_t mode) {
    return WITH_NAMES(opened(REAL(creat)(path, mode), O_CREAT | O_WRONLY | O_TRUNC));
}

EXPORT int creat64(const char *path, mode_t mode) {
    return WITH_NAMES(opened(REAL(creat64)(path, mode), O_CREAT | O_WRONLY | O_TRUNC));
}

EXPORT int close(int fd) {
    if (fd == trace && fd >= 0) {
        errno = EBADF;
        return -1;
    }
    forget(fd);
    return REAL(close)(fd);
}

EXPORT int fclose(FILE *file) {
    forget(fileno(file));
    return REAL(fclose)(file);
}

EXPORT int closedir(DIR *folder) {
    forget(dirfd(folder));
    return REAL(closedir)(folder);
}

/* Keep the trace open, even if its descriptor is in the range. */
EXPORT int close_range(unsigned first, unsigned last, int flags) {
    for (unsigned fd = first; fd <= last && fd < DESCRIPTORS; fd++)
        forget(fd);
    if (trace < 0 || first > (unsigned)trace || last < (unsigned)trace)
        return REAL(close_range)(first, last, flags);
    if (first < (unsigned)trace && REAL(close_range)(first, trace - 1, flags))
        return -1;
    return last > (unsigned)trace ? REAL(close_range)(trace + 1, last, flags) : 0;
}

static int doubled(int fd) {
    forget(fd);
    return fd;
}

EXPORT int dup(int fd) { return doubled(REAL(dup)(fd)); }

EXPORT int dup2(int fd, int other) { return doubled(REAL(dup2)(fd, other)); }

EXPORT int dup3(int fd, int other, int flags) { return doubled(REAL(dup3)(fd, other, flags)); }

#define FCNTL(name)                                                                                                    \
    EXPORT int name(int fd, int command, ...) {                                                                        \
        va_list more;                                                                                                  \
        va_start(more, command);                                                                                       \
        void *argument = va_arg(more, void *);                                                                         \
        va_end(more);                                                                                                  \
        int result = REAL(name)(fd, command, argument);                                                                \
        return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? doubled(result) : result;                            \
    }

FCNTL(fcntl)
FCNTL(fcntl64)

/* ----------------------------------------------------------------------------------------------------- folder entries */

/* Resolve symbolic links in the folder of a path; returns 0 if the path is not under the root. */
static int resolve(int folder, const char *path, char *resolved) {
    char joined[PATH_MAX], parent[PATH_MAX];
    int before = errno, length;
    if (trace < 0)
        return 0;
    if (*path == '/')
        length = snprintf(joined, sizeof joined, "%s", path);
    else if (folder == AT_FDCWD ? !!getcwd(parent, sizeof parent) : path_of(folder, parent))
        length = snprintf(joined, sizeof joined, "%s/%s", parent, path);
    else
        return 0;
    if (length <= 0 || length >= (int)sizeof joined)
        return 0;
    while (length > 1 && joined[length - 1] == '/')
        joined[--length] = 0;
    char *name = strrchr(joined, '/') + 1;
    char kept = *name;
    *name = 0;
    char *real_parent = realpath(joined, parent);
    *name = kept;
    errno = before;
    return real_parent && snprintf(resolved, PATH_MAX, "%s/%s", parent, name) < PATH_MAX && is_under(root, resolved);
}

static int renamed(int result, int from_folder, const char *from, int to_folder, const char *to, enum kind kind) {
    char before[PATH_MAX], after[PATH_MAX];
    if (result)
        return result;
    int is_from = resolve(from_folder, from, before), is_to = resolve(to_folder, to, after);
    if (is_from != is_to)
        die("a rename or link over the border of the root");
    if (is_from)
        record(kind, 0, 0, before, after, strlen(after));
    return result;
}

EXPORT int rename(const char *from, const char *to) {
    return WITH_NAMES(renamed(REAL(rename)(from, to), AT_FDCWD, from, AT_FDCWD, to, RENAMED));
}

EXPORT int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    return WITH_NAMES(renamed(REAL(renameat)(from_folder, from, to_folder, to), from_folder, from, to_folder, to, RENAMED));
}

EXPORT int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    if (flags & RENAME_EXCHANGE && trace >= 0)
        die("an exchange of two files is not understood here");
    return WITH_NAMES(renamed(
        REAL(renameat2)(from_folder, from, to_folder, to, flags), from_folder, from, to_folder, to, RENAMED));
}

EXPORT int link(const char *from, const char *to) {
    return WITH_NAMES(renamed(REAL(link)(from, to), AT_FDCWD, from, AT_FDCWD, to, LINKED));
}

EXPORT int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    return WITH_NAMES(renamed(REAL(linkat)(from_folder, from, to_folder, to, flags), from_folder, from, to_folder, to, LINKED));
}

static int unlinked(int result, const char *resolved) {
    if (!result && *resolved)
        record(UNLINKED, 0, 0, resolved, NULL, 0);
    return result;
}

#define UNLINK(name, declaration, folder, ...)                                                                         \
    EXPORT int name declaration {                                                                                      \
        char resolved[PATH_MAX];                                                                                       \
        if (!resolve(folder, path, resolved))                                                                          \
            *resolved = 0;                                                                                             \
        return WITH_NAMES(unlinked(REAL(name)(__VA_ARGS__), resolved));                                                \
    }

UNLINK(unlink, (const char *path), AT_FDCWD, path)
UNLINK(remove, (const char *path), AT_FDCWD, path)
UNLINK(rmdir, (const char *path), AT_FDCWD, path)
UNLINK(unlinkat, (int folder, const char *path, int flags), folder, folder, path, flags)

static int made_folder(int result, int folder, const char *path) {
    char resolved[PATH_MAX];
    struct stat status;
    if (!result && resolve(folder, path, resolved) && !stat(resolved, &status))
        record(MADE_FOLDER, status.st_ino, 0, resolved, NULL, 0);
    return result;
}

EXPORT int mkdir(const char *path, mode_t mode) {
    return WITH_NAMES(made_folder(REAL(mkdir)(path, mode), AT_FDCWD, path));
}

EXPORT int mkdirat(int folder, const char *path, mode_t mode) {
    return WITH_NAMES(made_folder(REAL(mkdirat)(folder, path, mode), folder, path));
}
