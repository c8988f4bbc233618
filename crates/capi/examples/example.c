/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes 16 blocks to a volume, all at once, reads them back into two buffers each, and compares.
 *
 *     cc -std=c99 example.c -I include -L DIR -lbasalt -o example
 *     ./example HOST:PORT pool/volume        (the contents of the first 64 KiB are lost)
 */
#include "basalt.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK = 4096, COUNT = 16 };

static unsigned char written[COUNT][BLOCK];
static unsigned char read_back[COUNT][BLOCK];

/* Reports the failure of a call. */
static int failed(const char *call)
{
    fprintf(stderr, "%s: %s\n", call, basalt_last_error());
    return 1;
}

/* Takes the events of COUNT requests. Each carries a pointer to its block. */
static int finish(struct basalt_queue *queue, const char *what)
{
    struct basalt_event events[COUNT];
    int ended = 0;

    while (ended < COUNT) {
        /* Waits for at least one event, and takes all that are there. */
        int taken = basalt_queue_wait(queue, events, 1, COUNT, NULL);
        if (taken < 0)
            return failed("basalt_queue_wait");
        for (int i = 0; i < taken; i++) {
            if (events[i].result < 0) {
                fprintf(stderr, "%s of block %p: %s\n", what, events[i].user_data, basalt_strerror(events[i].result));
                return 1;
            }
        }
        ended += taken;
    }
    printf("%d requests ended: %s\n", COUNT, what);
    return 0;
}

static int write_and_compare(struct basalt_volume *volume, struct basalt_queue *queue)
{
    for (int i = 0; i < COUNT; i++) {
        struct iovec whole = { written[i], BLOCK };

        memset(written[i], 'a' + i, BLOCK);
        if (basalt_aio_writev(volume, queue, (uint64_t)i * BLOCK, &whole, 1, 0, written[i]) < 0)
            return failed("basalt_aio_writev");
        /* `whole` and written[i] could be used for something else from here on. */
    }
    if (finish(queue, "write"))
        return 1;

    for (int i = 0; i < COUNT; i++) {
        struct iovec halves[2] = { { read_back[i], BLOCK / 2 }, { read_back[i] + BLOCK / 2, BLOCK / 2 } };

        if (basalt_aio_readv(volume, queue, (uint64_t)i * BLOCK, halves, 2, 0, read_back[i]) < 0)
            return failed("basalt_aio_readv");
        /* read_back[i] has to stay until the event is taken. */
    }
    if (finish(queue, "read"))
        return 1;

    if (memcmp(written, read_back, sizeof(written)) != 0) {
        fprintf(stderr, "the bytes differ\n");
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct basalt_options options = { .size = sizeof(options), .connect_timeout_ms = 5000 };
    struct basalt_volume_info info = { .size = sizeof(info) };
    struct basalt_cluster *cluster;
    struct basalt_volume *volume;
    struct basalt_queue *queue;
    int status;

    if (argc != 3) {
        fprintf(stderr, "usage: %s HOST:PORT POOL/VOLUME\n", argv[0]);
        return 2;
    }
    options.meta = argv[1];
    if (basalt_connect(&options, &cluster) < 0)
        return failed("basalt_connect");
    if (basalt_open(cluster, argv[2], 0, &volume) < 0)
        return failed("basalt_open");
    if (basalt_volume_info(volume, &info) < 0)
        return failed("basalt_volume_info");
    if (basalt_queue_create(COUNT, &queue) < 0)
        return failed("basalt_queue_create");
    printf("%s has %llu bytes\n", argv[2], (unsigned long long)info.length_bytes);

    status = write_and_compare(volume, queue);

    if (basalt_close(volume) < 0)
        return failed("basalt_close");
    if (basalt_queue_destroy(queue) < 0)
        return failed("basalt_queue_destroy");
    if (basalt_disconnect(cluster) < 0)
        return failed("basalt_disconnect");
    if (status == 0)
        printf("the bytes are equal\n");
    return status;
}
