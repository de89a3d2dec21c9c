/* Counts what goes through the C library of a process: copies, data handed to and taken from the kernel, allocations.
   Loaded before all other libraries (LD_PRELOAD); dsgd/study/transports/parties.py compiles and reads it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COPIED, TO_KERNEL, FROM_KERNEL, PULLED, CALLS, ALLOCATED, ALLOCATIONS, N_COUNTS };
static long counts[N_COUNTS];

static void add(int what, long n) { __atomic_fetch_add(&counts[what], n, __ATOMIC_RELAXED); }

int dsgd_counts(long *out) {
  for (int k = 0; k < N_COUNTS; k++) out[k] = __atomic_load_n(&counts[k], __ATOMIC_RELAXED);
  return N_COUNTS;
}

/* Copies. The real functions are looked up when this library is loaded; before that, bytes are moved one by one. */
typedef void *(*mover)(void *, const void *, size_t);
static mover real_memcpy, real_memmove;

__attribute__((constructor)) static void look_up(void) {
  real_memmove = (mover)dlsym(RTLD_NEXT, "memmove");
  real_memcpy = (mover)dlsym(RTLD_NEXT, "memcpy");
}

static void *slowly(void *to, const void *from, size_t n) {
  volatile char *a = to;
  const char *b = from;
  if ((const char *)to <= b)
    for (size_t k = 0; k < n; k++) a[k] = b[k];
  else
    while (n--) a[n] = b[n];
  return to;
}

void *memcpy(void *to, const void *from, size_t n) {
  add(COPIED, (long)n);
  return real_memcpy ? real_memcpy(to, from, n) : slowly(to, from, n);
}
void *memmove(void *to, const void *from, size_t n) {
  add(COPIED, (long)n);
  return real_memmove ? real_memmove(to, from, n) : slowly(to, from, n);
}
void *mempcpy(void *to, const void *from, size_t n) { return (char *)memcpy(to, from, n) + n; }
void *__memcpy_chk(void *to, const void *from, size_t n, size_t room) { (void)room; return memcpy(to, from, n); }
void *__memmove_chk(void *to, const void *from, size_t n, size_t room) { (void)room; return memmove(to, from, n); }

/* Allocations. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static void allocated(size_t n) { add(ALLOCATED, (long)n); add(ALLOCATIONS, 1); }

void *malloc(size_t n) { allocated(n); return __libc_malloc(n); }
void *calloc(size_t n, size_t size) { allocated(n * size); return __libc_calloc(n, size); }
void *realloc(void *old, size_t n) { allocated(n); return __libc_realloc(old, n); }
void *memalign(size_t to, size_t n) { allocated(n); return __libc_memalign(to, n); }
void *aligned_alloc(size_t to, size_t n) { return memalign(to, n); }
int posix_memalign(void **out, size_t to, size_t n) {
  void *found = memalign(to, n);
  if (!found) return ENOMEM;
  *out = found;
  return 0;
}

/* Data that the kernel copies. */
static long moved(int what, long n) {
  if (n > 0) add(what, n);
  add(CALLS, 1);
  return n;
}

ssize_t send(int fd, const void *from, size_t n, int flags) {
  return moved(TO_KERNEL, syscall(SYS_sendto, fd, from, n, flags, NULL, 0));
}
ssize_t sendto(int fd, const void *from, size_t n, int flags, const struct sockaddr *to, socklen_t length) {
  return moved(TO_KERNEL, syscall(SYS_sendto, fd, from, n, flags, to, length));
}
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  return moved(TO_KERNEL, syscall(SYS_sendmsg, fd, message, flags));
}
ssize_t write(int fd, const void *from, size_t n) { return moved(TO_KERNEL, syscall(SYS_write, fd, from, n)); }
ssize_t writev(int fd, const struct iovec *from, int n) { return moved(TO_KERNEL, syscall(SYS_writev, fd, from, n)); }

/* What is only looked at counts as a call, and as no data: it comes again. */
static long received(long n, int flags) {
  if (n > 0 && !(flags & MSG_PEEK)) add(FROM_KERNEL, n);
  add(CALLS, 1);
  return n;
}

ssize_t recv(int fd, void *to, size_t n, int flags) {
  return received(syscall(SYS_recvfrom, fd, to, n, flags, NULL, NULL), flags);
}
ssize_t recvfrom(int fd, void *to, size_t n, int flags, struct sockaddr *from, socklen_t *length) {
  return received(syscall(SYS_recvfrom, fd, to, n, flags, from, length), flags);
}
ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
  return received(syscall(SYS_recvmsg, fd, message, flags), flags);
}
ssize_t read(int fd, void *to, size_t n) { return moved(FROM_KERNEL, syscall(SYS_read, fd, to, n)); }
ssize_t readv(int fd, const struct iovec *to, int n) { return moved(FROM_KERNEL, syscall(SYS_readv, fd, to, n)); }
ssize_t __recv_chk(int fd, void *to, size_t n, size_t room, int flags) { (void)room; return recv(fd, to, n, flags); }
ssize_t __read_chk(int fd, void *to, size_t n, size_t room) { (void)room; return read(fd, to, n); }
ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long n, const struct iovec *from, unsigned long m,
                         unsigned long flags) {
  return moved(PULLED, syscall(SYS_process_vm_readv, pid, to, n, from, m, flags));
}
