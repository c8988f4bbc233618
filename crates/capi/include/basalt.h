/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libbasalt: volumes of a Basalt cluster as block devices of a C program.
 *
 *     basalt_connect    -> a cluster handle: one I/O thread, one control thread
 *     basalt_open       -> a volume handle
 *     basalt_queue_create -> a completion queue; it serves any volumes
 *     basalt_aio_*      -> submit; the call returns at once
 *     basalt_queue_wait -> take events: your pointer and the result
 *     basalt_close, basalt_queue_destroy, basalt_disconnect
 *
 * crates/capi/examples/example.c is a whole program. Compile with -lbasalt.
 *
 * Results
 *   Every function that returns an int returns 0 or a count, or a negative errno. After a failure basalt_last_error() returns
 *   one line of text with a code (BSLT-NNNN, see `basalt explain`), the cause, and what to do.
 *
 *   Calls fail with
 *     EINVAL        an argument is wrong: null pointer, length, alignment, range, flag, name
 *     EBADF         the handle is closed, or of another kind
 *     EAGAIN        the queue is full: take events, then submit again; or the pool or the volume is not ready yet; or an earlier
 *                   open of the volume, with other flags, timed out and has not ended: try again after a minute at most; or 256
 *                   opens of the program have no answer
 *     EBUSY         another client has the volume open for writing; or the handle is still in use
 *     ENOENT        no such pool, volume or snapshot
 *     EROFS         a write to a volume that is open for reading; a snapshot that is opened for writing
 *     EHOSTUNREACH  no metadata server answers, or none leads
 *     ETIMEDOUT     the volume was not opened in 15 s
 *     EPERM         the system forbids io_uring
 *     E2BIG         a field of a struct is set that this library does not know
 *     ENOTSUP       the process was forked after basalt_connect()
 *     ESHUTDOWN     the cluster handle is disconnected
 *     EIO           a bug of the library, or its I/O thread has ended
 *     EMFILE, ...   the system gives no thread or descriptor
 *
 *   Requests end with
 *     0             done; a write is durable on a majority of its replicas, a read has all its bytes
 *     -ESTALE       another client has taken the volume over: no write of this handle succeeds any more
 *     -ENOSPC       the pool is full
 *     -EIO          the stored data is damaged, and no good copy was found; or an administrator rehearses errors on the volume
 *     -ENOENT       the volume was removed
 *     -ETIMEDOUT    io_timeout_ms is over, or the storage is unavailable and on_unavailable lets requests fail; a write may have
 *                   taken effect, or do so later, but never after a later write of this handle to the same blocks has ended
 *     -ESHUTDOWN    the volume was closed before the request ended, or the I/O thread has ended; a write may have taken effect
 *   Without io_timeout_ms and on_unavailable a request waits for its replicas as long as it takes.
 *
 * Memory
 *   The library touches your memory only inside your calls, never on its own threads:
 *     - basalt_aio_writev() copies the data before it returns. Then the buffers and the vector are yours again.
 *     - basalt_aio_readv() copies the vector before it returns. The buffers must stay until the event of the read is taken:
 *       basalt_queue_wait() fills them. A read whose event is never taken never writes to them.
 *   So each byte is copied once: a write on its way in, because it must not change while it is checksummed, sent and sent again;
 *   a read on its way out.
 *   A queue holds at most its depth of requests, and BASALT_QUEUE_BYTES_MAX bytes of reads and writes: those in flight, and those
 *   whose events are not taken. A request that does not fit is refused with EAGAIN, and nothing has happened. A single larger request
 *   is accepted by an empty queue. No call that submits ever blocks on the network.
 *
 * Threads
 *   All functions may be called from any thread at any time, also with the same handle. Handles are checked numbers: a call with a
 *   closed one returns EBADF and touches nothing. All signals are blocked on the library's threads. The library calls no code of
 *   yours.
 *   Requests in flight have no order among each other, whatever their offsets: wait for the first if the second depends on it.
 *
 * fork()
 *   After basalt_connect() has been called once, a child process that was made by fork() must not use the library: its functions
 *   return ENOTSUP there. It may call exec(). A process that forks its workers connects in the workers.
 *
 * Versions
 *   The library's file name ends with BASALT_ABI_MAJOR (libbasalt.so.1), so a program is never run with another major version.
 *   Minor versions add functions, flags, and fields at the end of structs that begin with their size. A field that is 0 has its
 *   default, in old and new libraries.
 */
#ifndef BASALT_H
#define BASALT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BASALT_ABI_MAJOR 1
#define BASALT_ABI_MINOR 1
#define BASALT_ABI_VERSION ((BASALT_ABI_MAJOR << 16) | BASALT_ABI_MINOR)

struct timespec; /* of <time.h>, which hides it from strict ISO C */

/* Handles. They are opaque; NULL is never one. */
struct basalt_cluster;
struct basalt_volume;
struct basalt_queue;

/* Returns BASALT_ABI_VERSION of the library that runs. */
uint32_t basalt_abi_version(void);

/* Returns the text of the last call of this thread that failed; "" before the first. It is valid until the next one that fails. */
const char *basalt_last_error(void);

/* Returns one line about the result of an event. The text lives as long as the process. */
const char *basalt_strerror(int result);

/* ---- Cluster ---- */

/*
 * Values of on_unavailable: requests while no replica of their part of the volume (its PG) has served one for 5 s. Later requests
 * succeed again without a new open when the storage is back. A volume that was taken over fails its requests with -ESTALE always.
 */
#define BASALT_UNAVAILABLE_FREEZE 0u /* they wait as long as it takes */
#define BASALT_UNAVAILABLE_WAIT 1u   /* each fails with -ETIMEDOUT unavailable_wait_ms after its submission */
#define BASALT_UNAVAILABLE_ERROR 2u  /* they fail with -ETIMEDOUT at once, until the storage is back */

struct basalt_options {
    size_t size;                 /* sizeof(struct basalt_options) */
    const char *meta;            /* metadata servers, "HOST:PORT,HOST:PORT"; NULL: the environment variable BASALT_META */
    uint32_t connect_timeout_ms; /* longest wait of basalt_connect(); 0: 15,000 */
    uint32_t io_timeout_ms;      /* a request fails after this; 0: it waits as long as it takes */
    uint32_t full_wait_ms;       /* a write waits so long for space in a full pool, unless its volume says otherwise; 0: 20,000; UINT32_MAX: not at all */
    uint32_t reserved;           /* 0 */
    /* since 1.1 */
    uint32_t on_unavailable;      /* BASALT_UNAVAILABLE_*; 0: requests wait as long as it takes */
    uint32_t unavailable_wait_ms; /* bound of BASALT_UNAVAILABLE_WAIT, 5,000 to 604,800,000; 0: 30,000 */
};

/*
 * Connects to a cluster. Blocks until the leading metadata server has answered, for connect_timeout_ms at most. `options` may be
 * NULL: all defaults. A process may have several cluster handles; each has two threads of its own.
 */
int basalt_connect(const struct basalt_options *options, struct basalt_cluster **cluster);

/* Ends the threads of a cluster handle. EBUSY, and nothing happens, while volumes of it are open. */
int basalt_disconnect(struct basalt_cluster *cluster);

/* ---- Volume ---- */

#define BASALT_OPEN_RDONLY 1u /* read only: any number of clients may, beside one writer */
#define BASALT_OPEN_STEAL 2u  /* take the volume over from its present writer, whose writes then fail with ESTALE */

/*
 * Opens "pool/volume" for reading and writing, as its only writer, or with BASALT_OPEN_RDONLY for reading. Blocks until a metadata
 * server has granted it, for 15 s at most. EBUSY when another client writes to it; basalt_last_error() names that client. The lease
 * of a client that died ends after 10 s at most.
 */
int basalt_open(struct basalt_cluster *cluster, const char *name, uint32_t flags, struct basalt_volume **volume);

/*
 * Closes a volume. Requests in flight get 3 s to end, and then end with -ESHUTDOWN. Blocks until meta knows, for 5 s in all at most.
 * When it returns, every request has its event in its queue. The events can be taken afterwards.
 */
int basalt_close(struct basalt_volume *volume);

struct basalt_volume_info {
    size_t size;                      /* set it to sizeof(struct basalt_volume_info) before the call */
    uint64_t length_bytes;            /* length of the volume when it was opened */
    uint32_t block_bytes;             /* offsets and lengths of requests are multiples of this: 512 */
    uint32_t block_preferred_bytes;   /* requests aligned to this are cheaper: 4096 */
    uint32_t request_preferred_bytes; /* a request is cut at multiples of this offset: 512 KiB */
    uint32_t request_bytes_max;       /* longest read or write: 32 MiB. Discards and zeroes may cover the volume. */
    uint32_t requests_served;         /* so many requests of a volume are worked on at once; more wait in the library */
    uint32_t read_only;               /* 1 after BASALT_OPEN_RDONLY */
};

/* Describes an open volume. */
int basalt_volume_info(struct basalt_volume *volume, struct basalt_volume_info *info);

/* ---- Completion queue ---- */

#define BASALT_QUEUE_DEPTH_MAX 65536u
#define BASALT_QUEUE_BYTES_MAX ((uint64_t)64 << 20)

/* Makes a queue for at most `depth` requests: in flight, or ended and not taken. */
int basalt_queue_create(unsigned int depth, struct basalt_queue **queue);

/* Frees a queue. Events that were not taken are lost. EBUSY while requests are in flight or a thread waits in the queue. */
int basalt_queue_destroy(struct basalt_queue *queue);

/*
 * Returns a descriptor (an eventfd) that is readable while events wait: for poll() and epoll. Do not read, write or close it; the
 * queue owns it. Ask once, before the first request: a queue whose descriptor was never asked for saves its system calls.
 */
int basalt_queue_fd(struct basalt_queue *queue);

struct basalt_event {
    void *user_data;   /* as given at the submission */
    int result;        /* 0 or a negative errno; see the list above and basalt_strerror() */
    uint32_t reserved;
};

/*
 * Takes up to `max` events, and fills the buffers of their reads. Blocks until `min` events are there or `timeout` is over; NULL: no
 * timeout. With min = 0 it does not block. Returns the number of events taken, which is below `min` after a timeout. It waits also
 * when nothing is in flight, because another thread may submit. EINVAL when max is 0, or min above max or above the depth.
 */
int basalt_queue_wait(struct basalt_queue *queue, struct basalt_event *events, unsigned int min, unsigned int max,
                      const struct timespec *timeout);

/* ---- Asynchronous requests ---- */

#define BASALT_IOV_MAX 1024               /* longest vector */
#define BASALT_WRITE_ZEROES_ALLOCATE 1u   /* the zeroes take their space, so that a later write finds no full pool */

/*
 * Submit a request. After 0 exactly one event with `user_data` comes out of `queue`; after an error none does. `flags` has the bits
 * defined above for the call, or 0. Offsets and lengths are multiples of block_bytes; a request is not empty and lies in the volume.
 */
int basalt_aio_readv(struct basalt_volume *volume, struct basalt_queue *queue, uint64_t offset, const struct iovec *iov, int iovcnt,
                     uint32_t flags, void *user_data);
int basalt_aio_writev(struct basalt_volume *volume, struct basalt_queue *queue, uint64_t offset, const struct iovec *iov, int iovcnt,
                      uint32_t flags, void *user_data);

/*
 * Ends when every write, discard and zeroing whose event was in its queue before is durable. They are durable when they end, so a
 * flush costs nothing; a program that may run on other storage calls it where it must.
 */
int basalt_aio_flush(struct basalt_volume *volume, struct basalt_queue *queue, uint32_t flags, void *user_data);

/* Frees the space of a range. It reads as zeroes afterwards. */
int basalt_aio_discard(struct basalt_volume *volume, struct basalt_queue *queue, uint64_t offset, uint64_t length, uint32_t flags,
                       void *user_data);

/* Makes a range read as zeroes; its space is freed unless BASALT_WRITE_ZEROES_ALLOCATE is given. */
int basalt_aio_write_zeroes(struct basalt_volume *volume, struct basalt_queue *queue, uint64_t offset, uint64_t length, uint32_t flags,
                            void *user_data);

/* ---- Synchronous requests ---- */

/* Read or write all of `length` bytes, or flush, and wait for the end. 0, or the errno of the call or of the request. */
int basalt_pread(struct basalt_volume *volume, void *buffer, size_t length, uint64_t offset);
int basalt_pwrite(struct basalt_volume *volume, const void *buffer, size_t length, uint64_t offset);
int basalt_flush(struct basalt_volume *volume);

#ifdef __cplusplus
}
#endif

#endif /* BASALT_H */
