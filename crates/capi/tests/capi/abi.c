/* SPDX-License-Identifier: Apache-2.0 */
/* Prints numbers of the header: sizes, offsets, constants. The test `abi` compares them with those of the library. */
#include "basalt.h"

#include <stdio.h>

#define NUMBER(name) printf(#name " %llu\n", (unsigned long long)(name))
#define SIZE(type) printf(#type " %zu\n", sizeof(struct basalt_##type))
#define FIELD(type, field) printf(#type "." #field " %zu\n", offsetof(struct basalt_##type, field))

int main(void)
{
    NUMBER(BASALT_ABI_VERSION);
    NUMBER(BASALT_OPEN_RDONLY);
    NUMBER(BASALT_OPEN_STEAL);
    NUMBER(BASALT_UNAVAILABLE_FREEZE);
    NUMBER(BASALT_UNAVAILABLE_WAIT);
    NUMBER(BASALT_UNAVAILABLE_ERROR);
    NUMBER(BASALT_WRITE_ZEROES_ALLOCATE);
    NUMBER(BASALT_QUEUE_DEPTH_MAX);
    NUMBER(BASALT_QUEUE_BYTES_MAX);
    NUMBER(BASALT_IOV_MAX);
    SIZE(options);
    FIELD(options, size);
    FIELD(options, meta);
    FIELD(options, connect_timeout_ms);
    FIELD(options, io_timeout_ms);
    FIELD(options, full_wait_ms);
    FIELD(options, reserved);
    FIELD(options, on_unavailable);
    FIELD(options, unavailable_wait_ms);
    SIZE(volume_info);
    FIELD(volume_info, size);
    FIELD(volume_info, length_bytes);
    FIELD(volume_info, block_bytes);
    FIELD(volume_info, block_preferred_bytes);
    FIELD(volume_info, request_preferred_bytes);
    FIELD(volume_info, request_bytes_max);
    FIELD(volume_info, requests_served);
    FIELD(volume_info, read_only);
    SIZE(event);
    FIELD(event, user_data);
    FIELD(event, result);
    FIELD(event, reserved);
    return 0;
}
