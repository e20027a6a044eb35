/* Changes the wall clock of a program while it runs (LD_PRELOAD).

   TWINBUS_CLOCK_CONTROL  a file with one int64, the offset in nanoseconds, mapped into memory: clock.py may change it
                          at any time. Without this variable the clock is not changed.

   Monotonic clocks are not changed, as when an operator or NTP sets a machine's clock. The kernel does not know the
   offset: modification times of files are real, and absolute deadlines are converted before they reach the kernel. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
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

enum { SECOND_NS = 1000000000, OLDEST_WALL_S = 1000000000 /* 2001; monotonic clocks never show so much */ };

static _Atomic int64_t *moved_ns;

__attribute__((constructor)) static void start(void) {
    const char *name = getenv("TWINBUS_CLOCK_CONTROL");
    if (!name)
        return;
    int control = open(name, O_RDWR | O_CLOEXEC);
    void *mapped = control < 0 ? MAP_FAILED : mmap(NULL, sizeof *moved_ns, PROT_READ, MAP_SHARED, control, 0);
    if (mapped == MAP_FAILED) {
        perror(name);
        abort();
    }
    close(control);
    moved_ns = mapped;
}

static struct timespec shifted(struct timespec moment, int64_t by_ns) {
    int64_t ns = moment.tv_nsec + by_ns % SECOND_NS;
    moment.tv_sec += by_ns / SECOND_NS + (ns >= SECOND_NS) - (ns < 0);
    moment.tv_nsec = ns - (ns >= SECOND_NS) * (int64_t)SECOND_NS + (ns < 0) * (int64_t)SECOND_NS;
    return moment;
}

static int64_t offset(void) { return moved_ns ? *moved_ns : 0; }

/* --------------------------------------------------------------------------------------------------------- reading */

EXPORT int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        *now = shifted(*now, offset());
    return result;
}

EXPORT int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    *now = (struct timeval){precise.tv_sec, precise.tv_nsec / 1000};
    return 0;
}

EXPORT time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

EXPORT int timespec_get(struct timespec *now, int base) {
    if (base != TIME_UTC)
        return 0;
    clock_gettime(CLOCK_REALTIME, now);
    return base;
}

/* --------------------------------------------------------------------------------------------------------- waiting */

/* A deadline on the kernel's clock. Deadlines on monotonic clocks, which some objects use, are small numbers. */
static struct timespec true_deadline(const struct timespec *until) {
    return until->tv_sec > OLDEST_WALL_S ? shifted(*until, -offset()) : *until;
}

EXPORT int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                                  const struct timespec *restrict until) {
    static _Atomic(void *) found; /* the oldest version of this function has another layout of conditions */
    if (!found)
        found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!found)
        found = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec deadline = true_deadline(until);
    return ((__typeof__(&pthread_cond_timedwait))found)(condition, mutex, &deadline);
}

EXPORT int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    struct timespec deadline = true_deadline(until);
    return REAL(sem_timedwait)(semaphore, &deadline);
}

EXPORT int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    struct timespec deadline = true_deadline(until);
    return REAL(pthread_mutex_timedlock)(mutex, &deadline);
}
