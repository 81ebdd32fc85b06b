/* Any bytes as a reservoir.  Sums would stop every change at the door, so the input is also taken as the inside of a
 * file whose sums are right: a JSON header up to the first NUL byte, then metadata; "@@@@@@@@@@@@@@@@" in the header
 * stands for the sum of the metadata. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "formats/reservoir.h"
#include "veloxquant/reservoir.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static volatile uint8_t sink;

static void touch(const void *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        sink = sink ^ ((const uint8_t *)bytes)[i];
}

static void open_file(const void *bytes, size_t n_bytes)
{
    vq_gguf *g;
    vq_error err;
    const vq_status status = vq_gguf_open_memory(&g, "input", bytes, n_bytes, &err);
    if (status == VQ_OK) {
        for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++) {
            const vq_tensor *t = vq_gguf_tensor_at(g, i);
            touch(t->name.at, t->name.n_bytes);
            touch(t->data, t->n_bytes);
            if (vq_type_packed_bits(t->type) && !vq_reservoir_rotation(g, (uint32_t)t->dims[0]))
                abort();
        }
        for (uint64_t i = 0; i < vq_gguf_n_values(g); i++)
            touch(vq_gguf_value_at(g, i)->key.at, vq_gguf_value_at(g, i)->key.n_bytes);
        for (uint32_t i = 0; g->reservoir && i < g->reservoir->n_rotations; i++)
            touch(g->reservoir->rotations[i].matrix, vq_stored_rotation_bytes(&g->reservoir->rotations[i]));
        (void)vq_gguf_verify(g, NULL, NULL, &err);
    } else if (g || err.status != status || strncmp(err.text, "input: ", 7)) {
        abort();
    }
    vq_gguf_close(g);
}

static void open_sealed(const uint8_t *bytes, size_t n_bytes)
{
    static const char mark[] = "@@@@@@@@@@@@@@@@";
    const uint8_t *end = n_bytes ? memchr(bytes, 0, n_bytes) : NULL;
    const size_t n_header = end ? (size_t)(end - bytes) : n_bytes, n_rest = end ? n_bytes - n_header - 1 : 0;
    const size_t n_pages =
        (n_rest + VQ_RESERVOIR_PAGE - 1) / VQ_RESERVOIR_PAGE + 2; /* head, metadata, one for tensors */
    const size_t header_at = n_pages * VQ_RESERVOIR_PAGE;
    uint8_t *file = calloc(header_at + n_header + 1, 1);
    if (!file)
        return;
    if (n_rest)
        memcpy(file + VQ_RESERVOIR_PAGE, end + 1, n_rest);
    if (n_header)
        memcpy(file + header_at, bytes, n_header);
    char sum[17];
    snprintf(sum, sizeof sum, "%016" PRIx64, (uint64_t)XXH3_64bits(file + VQ_RESERVOIR_PAGE, n_rest));
    for (uint8_t *at; (at = memmem(file + header_at, n_header, mark, 16)) != NULL;)
        memcpy(at, sum, 16);
    vq_reservoir_head head = {.magic = VQ_RESERVOIR_MAGIC,
                              .version = VQ_RESERVOIR_VERSION,
                              .page = VQ_RESERVOIR_PAGE,
                              .n_bytes = header_at + n_header,
                              .header_at = header_at,
                              .n_header_bytes = n_header,
                              .header_sum = XXH3_64bits(file + header_at, n_header)};
    head.sum = XXH3_64bits(&head, offsetof(vq_reservoir_head, sum));
    memcpy(file, &head, sizeof head);
    void *exact = realloc(file, header_at + n_header); /* a read behind the end is seen */
    open_file(exact ? exact : file, header_at + n_header);
    free(exact ? exact : file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    void *copy = calloc(n_bytes + !n_bytes, 1);
    if (!copy)
        return 0;
    if (n_bytes)
        memcpy(copy, bytes, n_bytes);
    open_file(copy, n_bytes);
    free(copy);
    open_sealed(bytes, n_bytes);
    return 0;
}
