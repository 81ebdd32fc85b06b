#include "support/toy_open.h"
#include "support/temporary.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

vq_status toy_open_bytes(vq_model **out, gguf_buffer b, vq_error *err)
{
    char path[TEMPORARY_PATH];
    temporary_file(path, "toy");
    if (!gguf_buffer_save(b, path))
        abort();
    free(b.bytes);
    const vq_status status = vq_model_open(out, path, err);
    unlink(path);
    return status;
}

vq_model *toy_open(const toy_params *p)
{
    vq_model *model;
    vq_error err;
    if (toy_open_bytes(&model, toy_model_make(p), &err) != VQ_OK) {
        fprintf(stderr, "toy %s: %s\n", toy_family_name(p->family), err.text);
        abort();
    }
    return model;
}
