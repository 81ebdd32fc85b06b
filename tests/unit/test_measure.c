/* Spreads, verdicts, load and turns; among them the ways in which a benchmark lies: one input again and again, equal
 * inputs, a busy machine, a difference below the noise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "veloxquant/measure.h"

static void assert_near(double got, double want, const char *what)
{
    if (!(fabs(got - want) <= 1e-12))
        fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

static void quartiles_are_between_neighbours(void **state)
{
    (void)state;
    const double x[] = {4, 1, 3, 2};
    const vq_spread s = vq_spread_of(x, 4);
    assert_near(s.least, 1, "least");
    assert_near(s.q1, 1.75, "q1");
    assert_near(s.median, 2.5, "median");
    assert_near(s.q3, 3.25, "q3");
    assert_near(x[0], 4, "the samples stay");
    assert_int_equal(vq_spread_of(x, 0).n, 0);
    assert_near(vq_spread_of(x, 1).q3, 4, "one sample");
}

static void verdicts_need_more_than_noise(void **state)
{
    (void)state;
    double base[12], again[12], fast[12], level[12];
    for (int i = 0; i < 12; i++) {
        base[i] = 1;
        again[i] = 1 + 0.02 * (i % 3 - 1); /* 2 % of noise */
        fast[i] = 0.8 + 0.001 * i;
        level[i] = 0.99;
    }
    vq_versus v = vq_versus_of(base, again, fast, 12);
    assert_int_equal(v.verdict, VQ_FASTER);
    /* P(fewer than 3 of 12 on one side) = 79 / 4096, twice that is 3.9 %: the third smallest and the third largest */
    assert_near(v.low, 1 / (0.8 + 0.001 * 9), "low");
    assert_near(v.high, 1 / (0.8 + 0.001 * 2), "high");
    assert_int_equal(vq_versus_of(fast, fast, base, 12).verdict, VQ_SLOWER);
    assert_int_equal(vq_versus_of(base, again, level, 12).verdict, VQ_NOT_DISTINGUISHABLE);
    assert_int_equal(vq_versus_of(base, base, fast, 5).verdict, VQ_NOT_DISTINGUISHABLE);
    assert_int_equal(vq_versus_of(base, base, fast, 6).verdict, VQ_FASTER);
    assert_string_equal(vq_verdict_name(VQ_NOT_DISTINGUISHABLE), "not distinguishable");
}

/* Marks 10 s apart in which this process took 9 s of CPU time. */
static vq_load load_with(double others, double steal, double waiting)
{
    const vq_load_mark marks[] = {{100, 5, 1000, 3, waiting}, {110, 14, 1009 + 10 * others, 3 + 10 * steal, waiting}};
    return vq_load_between(marks, 2);
}

static void load_is_seen(void **state)
{
    (void)state;
    const vq_load quiet = load_with(0.05, 0.01, 0);
    assert_true(quiet.known && quiet.quiet);
    assert_true(fabs(quiet.others - 0.05) < 1e-9 && fabs(quiet.steal - 0.01) < 1e-9);
    assert_false(load_with(0.2, 0, 0).quiet);
    assert_false(load_with(0, 0.05, 0).quiet);
    assert_false(load_with(0, 0, 1).quiet);
    const vq_load_mark unknown[] = {{100, 5, -1, 0, -1}, {110, 14, -1, 0, -1}};
    assert_false(vq_load_between(unknown, 2).known);
    assert_false(vq_load_between(unknown, 2).quiet);
}

/* ---- turns ---- */

enum { N_INPUTS = 3, MOST_RUNS = 64 };
struct log {
    char who[MOST_RUNS];
    uint32_t input[MOST_RUNS], n;
};
struct variant_arg {
    struct log *log;
    char who;
};

static vq_status note(void *arg, uint32_t input, vq_error *err)
{
    (void)err;
    struct variant_arg *a = arg;
    a->log->who[a->log->n] = a->who;
    a->log->input[a->log->n++] = input;
    return VQ_OK;
}

static const void *input_of(void *arg, uint32_t input, size_t *n_bytes)
{
    *n_bytes = 4;
    return (const char *)arg + 4 * input;
}

static bool stop_at_two(void *arg, uint32_t done, uint32_t all)
{
    (void)arg;
    (void)all;
    return done < 2;
}

static void variants_take_turns(void **state)
{
    (void)state;
    struct log log = {.n = 0};
    struct variant_arg a = {&log, 'a'}, b = {&log, 'b'};
    const vq_variant variants[] = {{"a", note, &a}, {"b", note, &b}};
    char inputs[] = "one.two.six.";
    vq_turns t = {.variants = variants,
                  .n_variants = 2,
                  .n_inputs = N_INPUTS,
                  .n_rounds = 3,
                  .input = input_of,
                  .input_arg = inputs};
    double seconds[3 * 3];
    vq_load load;
    vq_error err;
    assert_int_equal(vq_take_turns(&t, seconds, &load, &err), VQ_OK);
    log.who[log.n] = 0;
    assert_string_equal(log.who, "ababaabaaba"); /* warm-up, then three rounds: base, variant, control */
    for (uint32_t i = 1; i < log.n; i++)
        assert_int_equal(log.input[i], (log.input[i - 1] + 1) % N_INPUTS);
    for (int i = 0; i < 9; i++)
        assert_true(seconds[i] >= 0);

    log.n = 0;
    t.progress = stop_at_two;
    assert_int_equal(vq_take_turns(&t, seconds, &load, &err), VQ_ERR_CANCELLED);
    assert_string_equal(err.text, "cancelled after 2 of 3 rounds");
}

static void repeated_inputs_are_refused(void **state)
{
    (void)state;
    struct log log = {.n = 0};
    struct variant_arg a = {&log, 'a'};
    const vq_variant variant = {"a", note, &a};
    char inputs[] = "one.two.one.";
    vq_turns t = {.variants = &variant,
                  .n_variants = 1,
                  .n_inputs = N_INPUTS,
                  .n_rounds = 1,
                  .input = input_of,
                  .input_arg = inputs};
    double seconds[2];
    vq_load load;
    vq_error err;
    assert_int_equal(vq_take_turns(&t, seconds, &load, &err), VQ_ERR_ARG);
    assert_string_equal(err.text, "inputs 0 and 2 of the pool are the same bytes");
    t.n_inputs = 1;
    assert_int_equal(vq_take_turns(&t, seconds, &load, &err), VQ_ERR_ARG);
    assert_non_null(strstr(err.text, "a pool of 1 inputs"));
    assert_int_equal(log.n, 0);
}

static vq_status rest(void *arg, uint32_t input, vq_error *err)
{
    (void)arg;
    (void)input;
    (void)err;
    const struct timespec t = {0, 20000000};
    nanosleep(&t, NULL);
    return VQ_OK;
}

static void a_busy_machine_is_refused(void **state)
{
    (void)state;
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0)
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile unsigned n = 0; children[i] == 0; n++) {
        }
    }
    const vq_variant variant = {"rest", rest, NULL};
    const vq_turns t = {.variants = &variant, .n_variants = 1, .n_inputs = 2, .n_rounds = 10, .need_quiet = true};
    double seconds[20];
    vq_load load;
    vq_error err;
    const vq_status status = vq_take_turns(&t, seconds, &load, &err);
    for (int i = 0; i < 2; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    assert_int_equal(status, VQ_ERR_UNSUPPORTED);
    assert_false(load.quiet);
    if (load.known && !(load.others > VQ_QUIET_OTHERS))
        fail_msg("two busy processes: others took %.3f CPUs", load.others);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quartiles_are_between_neighbours),
        cmocka_unit_test(verdicts_need_more_than_noise),
        cmocka_unit_test(load_is_seen),
        cmocka_unit_test(variants_take_turns),
        cmocka_unit_test(repeated_inputs_are_refused),
        cmocka_unit_test(a_busy_machine_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
