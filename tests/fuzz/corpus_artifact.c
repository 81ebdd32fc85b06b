/* Writes the corpus of fuzz_artifact: small files of both kinds, whole and damaged. To be run again when the format
 * changes:  corpus_artifact tests/fuzz/corpus/artifact */
#include "corpus.h"
#include "support/artifact.h"

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    const vq_artifact_info qr = {
        .d = 3, .qr = true, .seed = 7, .n_layers = 1, .n_kv_heads = 2, .least_bits = 1, .most_bits = 2};
    vq_artifact_info blocks = qr, whole = qr;
    blocks.qr = whole.qr = false;
    blocks.d = 12;
    whole.d = 8;
    uint8_t bytes[4096];
    int failed = put(argv[1], "blocks", bytes, artifact_bytes(&blocks, bytes, sizeof bytes));
    failed |= put(argv[1], "signs", bytes, artifact_bytes(&whole, bytes, sizeof bytes));
    const size_t n = artifact_bytes(&qr, bytes, sizeof bytes);
    failed |= put(argv[1], "qr", bytes, n) | put(argv[1], "empty", bytes, 0) | put(argv[1], "head", bytes, 40) |
              put(argv[1], "cut", bytes, n - 4) | put(argv[1], "magic", (const uint8_t *)"VQARTIF2", 8);
    static const struct {
        const char *name;
        size_t at;
        uint8_t value;
    } faults[] = {{"version", 16, 2},      {"no_head_size", 20, 0}, {"huge_head_size", 21, 255},
                  {"kind", 24, 2},         {"as_hadamard", 24, 0},  {"layers", 30, 1},
                  {"no_heads", 32, 0},     {"no_bits", 36, 0},      {"bits", 40, 9},
                  {"reserved", 44, 1},     {"seed", 48, 8},         {"tail", 56, 1},
                  {"level", 64, 1},        {"padding", 120, 1},     {"sign", 128, 0x55},
                  {"infinite", 195, 0x7f}, {"row", 193, 0x11}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const uint8_t kept = bytes[faults[i].at], before = bytes[faults[i].at - 1];
        bytes[faults[i].at] = faults[i].value;
        if (faults[i].value == 0x7f)
            bytes[faults[i].at - 1] = 0x80;
        failed |= put(argv[1], faults[i].name, bytes, n);
        bytes[faults[i].at] = kept;
        bytes[faults[i].at - 1] = before;
    }
    return failed;
}
