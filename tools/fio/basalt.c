/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An external engine of fio for volumes of Basalt, on libbasalt. docs/c-api.md shows its use; scripts/fio-engine builds it.
 *
 * Options: meta=HOST:PORT,... (or the environment variable BASALT_META), volume=POOL/VOLUME, steal=1.
 *
 * All jobs of a process that name the same volume share one handle, because a volume has one writer; each has a queue of its own.
 * A job that only reads opens the volume for reading. Jobs run as threads: libbasalt does not outlive a fork.
 *
 * This file is under the licence of this repository and has nothing of fio in it. It is compiled with the headers of fio, which are under
 * GPL-2 and are not part of this repository: build the engine where it is used, and do not distribute it.
 */
#include "fio.h"
#include "optgroup.h"

#include "basalt.h"

struct options {
    void *unused; /* fio keeps a pointer of its own here */
    char *meta;
    char *volume;
    unsigned int steal;
};

/* One open volume, for all jobs that name it. */
struct shared {
    struct shared *next;
    char *meta;
    char *name;
    uint32_t flags;
    unsigned int users;
    struct basalt_cluster *cluster;
    struct basalt_volume *volume;
    uint64_t length;
};

/* One job. */
struct job {
    struct shared *shared;
    struct basalt_queue *queue;
    struct basalt_event *events;
};

static struct shared *all_shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct fio_option options[] = {
    {
        .name = "meta",
        .lname = "Metadata servers",
        .type = FIO_OPT_STR_STORE,
        .help = "Metadata servers, HOST:PORT,HOST:PORT; default: $BASALT_META",
        .off1 = offsetof(struct options, meta),
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "volume",
        .lname = "Volume",
        .type = FIO_OPT_STR_STORE,
        .help = "POOL/VOLUME",
        .off1 = offsetof(struct options, volume),
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "steal",
        .lname = "Take the volume over",
        .type = FIO_OPT_BOOL,
        .help = "Take the volume over from its present writer",
        .off1 = offsetof(struct options, steal),
        .def = "0",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    { .name = NULL },
};

static bool is_same(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static void shared_free(struct shared *shared)
{
    if (shared->volume && basalt_close(shared->volume) < 0)
        log_err("basalt: %s\n", basalt_last_error());
    if (shared->cluster && basalt_disconnect(shared->cluster) < 0)
        log_err("basalt: %s\n", basalt_last_error());
    free(shared->meta);
    free(shared->name);
    free(shared);
}

static struct shared *shared_open(const struct options *o, uint32_t flags)
{
    struct basalt_options settings = { .size = sizeof(settings), .meta = o->meta };
    struct basalt_volume_info info = { .size = sizeof(info) };
    struct shared *shared = calloc(1, sizeof(*shared));

    if (!shared)
        return NULL;
    shared->meta = o->meta ? strdup(o->meta) : NULL;
    shared->name = strdup(o->volume);
    shared->flags = flags;
    if (basalt_connect(&settings, &shared->cluster) < 0 || basalt_open(shared->cluster, o->volume, flags, &shared->volume) < 0 ||
        basalt_volume_info(shared->volume, &info) < 0) {
        log_err("basalt: %s\n", basalt_last_error());
        shared_free(shared);
        return NULL;
    }
    shared->length = info.length_bytes;
    return shared;
}

/* Returns the handle of the volume, open for what the job does. */
static struct shared *shared_get(struct thread_data *td)
{
    const struct options *o = td->eo;
    uint32_t flags = td_write(td) || td_trim(td) ? (o->steal ? BASALT_OPEN_STEAL : 0) : BASALT_OPEN_RDONLY;
    struct shared *shared;

    pthread_mutex_lock(&lock);
    for (shared = all_shared; shared; shared = shared->next)
        if (is_same(shared->meta, o->meta) && is_same(shared->name, o->volume) && shared->flags == flags)
            break;
    if (!shared) {
        shared = shared_open(o, flags);
        if (shared) {
            shared->next = all_shared;
            all_shared = shared;
        }
    }
    if (shared)
        shared->users++;
    pthread_mutex_unlock(&lock);
    return shared;
}

static void shared_put(struct shared *shared)
{
    struct shared **link;

    pthread_mutex_lock(&lock);
    if (--shared->users == 0) {
        for (link = &all_shared; *link != shared; link = &(*link)->next)
            ;
        *link = shared->next;
        shared_free(shared);
    }
    pthread_mutex_unlock(&lock);
}

static void cleanup(struct thread_data *td)
{
    struct job *job = td->io_ops_data;

    if (!job)
        return;
    td->io_ops_data = NULL;
    /* Takes what a job that was ended early has in flight. Its buffers are still there. */
    while (job->queue && basalt_queue_destroy(job->queue) == -EBUSY) {
        struct timespec second = { .tv_sec = 1 };

        if (basalt_queue_wait(job->queue, job->events, 1, td->o.iodepth, &second) <= 0)
            break;
    }
    if (job->shared)
        shared_put(job->shared);
    free(job->events);
    free(job);
}

/* Opens the volume, in fio's main thread: the size of the job depends on it. */
static int setup(struct thread_data *td)
{
    const struct options *o = td->eo;
    struct job *job;

    if (!o->volume) {
        log_err("basalt: the option volume=POOL/VOLUME is missing\n");
        return 1;
    }
    td->o.use_thread = 1;
    job = calloc(1, sizeof(*job));
    if (!job)
        return 1;
    td->io_ops_data = job;
    job->shared = shared_get(td);
    if (!job->shared) {
        cleanup(td);
        return 1;
    }
    /* fio wants a file: the volume is one. */
    if (!td->files_index) {
        add_file(td, o->volume, 0, 0);
        td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
        td->o.open_files++;
    }
    td->files[0]->real_file_size = job->shared->length;
    return 0;
}

static int init(struct thread_data *td)
{
    struct job *job = td->io_ops_data;

    job->events = calloc(td->o.iodepth, sizeof(*job->events));
    if (!job->events || basalt_queue_create(td->o.iodepth, &job->queue) < 0) {
        log_err("basalt: %s\n", job->events ? basalt_last_error() : "out of memory");
        return 1;
    }
    return 0;
}

static int submit(struct job *job, struct io_u *io_u)
{
    struct basalt_volume *volume = job->shared->volume;
    struct iovec iov = { .iov_base = io_u->xfer_buf, .iov_len = io_u->xfer_buflen };

    switch (io_u->ddir) {
    case DDIR_READ:
        return basalt_aio_readv(volume, job->queue, io_u->offset, &iov, 1, 0, io_u);
    case DDIR_WRITE:
        return basalt_aio_writev(volume, job->queue, io_u->offset, &iov, 1, 0, io_u);
    case DDIR_TRIM:
        return basalt_aio_discard(volume, job->queue, io_u->offset, io_u->xfer_buflen, 0, io_u);
    default:
        return ddir_sync(io_u->ddir) ? basalt_aio_flush(volume, job->queue, 0, io_u) : -EOPNOTSUPP;
    }
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u)
{
    int result;

    fio_ro_check(td, io_u);
    result = submit(td->io_ops_data, io_u);
    if (result == -EAGAIN)
        return FIO_Q_BUSY;
    if (result < 0) {
        log_err("basalt: %s\n", basalt_last_error());
        io_u->error = -result;
        td_verror(td, io_u->error, "submit");
        return FIO_Q_COMPLETED;
    }
    return FIO_Q_QUEUED;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *timeout)
{
    struct job *job = td->io_ops_data;

    return basalt_queue_wait(job->queue, job->events, min, max, timeout);
}

static struct io_u *event(struct thread_data *td, int at)
{
    struct job *job = td->io_ops_data;
    struct io_u *io_u = job->events[at].user_data;

    io_u->error = job->events[at].result < 0 ? -job->events[at].result : 0;
    return io_u;
}

static char *errdetails(struct io_u *io_u)
{
    return strdup(basalt_strerror(-(int)io_u->error));
}

static int no_file(struct thread_data *td, struct fio_file *f)
{
    return 0;
}

/* fio finds the engine by this name. */
struct ioengine_ops ioengine = {
    .name = "basalt",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NOEXTEND,
    .setup = setup,
    .init = init,
    .queue = queue,
    .getevents = getevents,
    .event = event,
    .errdetails = errdetails,
    .cleanup = cleanup,
    .open_file = no_file,
    .close_file = no_file,
    .invalidate = no_file,
    .options = options,
    .option_struct_size = sizeof(struct options),
};
