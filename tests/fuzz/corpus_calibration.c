/* Writes the corpus of fuzz_calibration: small synthetic calibrations, whole and damaged. To be run again when the
 * format changes:  corpus_calibration tests/fuzz/corpus/calibration */
#include <string.h>

#include "corpus.h"
#include "support/calibration.h"

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    const vq_calibration_info small = {.n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .d_k = 3, .d_v = 2, .n_tokens = 9};
    /* with the smallest codebooks: those of 256 centroids are too large for a corpus */
    vq_calibration_info with_atoms = small;
    with_atoms.codebooks = VQ_CODEBOOKS_ATOMS;
    vq_calibration *c = toy_calibration(&small, 1), *atoms = toy_calibration(&with_atoms, 1);
    const void *sealed;
    size_t n;
    if (vq_calibration_seal(c, &sealed, &n, NULL) != VQ_OK)
        return 1;
    unsigned char bytes[16384];
    if (n > sizeof bytes)
        return 1;
    memcpy(bytes, sealed, n);
    int failed = put(argv[1], "whole", bytes, n) | put(argv[1], "empty", bytes, 0) | put(argv[1], "head", bytes, 40) |
                 put(argv[1], "cut", bytes, n - 4) | put(argv[1], "magic", (const unsigned char *)"VQCALIB2", 8);
    static const struct {
        const char *name;
        size_t at;
        unsigned char value;
    } faults[] = {
        {"version", 16, 1},     {"statistics", 20, 3},        {"no_layers", 32, 0},   {"layers", 34, 1},
        {"heads", 36, 3},       {"huge_d", 46, 255},          {"padding", 76 + 4, 1}, {"infinite", 64 + 3, 0x7f},
        {"values_only", 52, 1}, {"no_such_codebooks", 52, 16}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const unsigned char kept = bytes[faults[i].at], before = bytes[faults[i].at - 1];
        bytes[faults[i].at] = faults[i].value;
        if (faults[i].value == 0x7f)
            bytes[faults[i].at - 1] = 0x80;
        failed |= put(argv[1], faults[i].name, bytes, n);
        bytes[faults[i].at] = kept;
        bytes[faults[i].at - 1] = before;
    }
    if (vq_calibration_seal(atoms, &sealed, &n, NULL) != VQ_OK)
        return 1;
    failed |= put(argv[1], "atoms", sealed, n) | put(argv[1], "atoms_cut", sealed, n - 64);
    vq_calibration_close(atoms);
    vq_calibration_close(c);
    return failed;
}
