#include "kv/codec_spectrum.h"

const float *vq_codec_directions(const vq_codec_env *env)
{
    return vq_calibration_at(env->calibration, env->keys ? VQ_KEY_BASIS : VQ_VALUE_BASIS, env->layer, env->head);
}

void vq_codec_spectrum(const vq_codec_env *env, const float *directions, float *moments, uint16_t *order)
{
    const vq_calibration *c = env->calibration;
    const float *spectrum =
        vq_calibration_at(c, env->keys ? VQ_KEY_SPECTRUM : VQ_VALUE_SPECTRUM, env->layer, env->head);
    const float *mean = vq_calibration_at(c, VQ_VALUE_MEAN, env->layer, env->head);
    for (uint32_t j = 0; j < env->d; j++) {
        double along = 0;
        for (uint32_t i = 0; i < env->d && !env->keys; i++)
            along += (double)mean[i] * (double)directions[(size_t)j * env->d + i];
        const float moment = spectrum[j] + (float)(along * along);
        uint32_t at = j;
        for (; at > 0 && moments[at - 1] < moment; at--) {
            moments[at] = moments[at - 1];
            order[at] = order[at - 1];
        }
        moments[at] = moment;
        order[at] = (uint16_t)j;
    }
}
