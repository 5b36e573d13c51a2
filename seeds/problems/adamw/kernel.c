/* One step of AdamW, the first of a run: decoupled weight decay, and the mean of squares corrected. */

// tune: flags in "-O2 -march=native", "-O3 -march=native", "-O3 -march=native -ffast-math", "-O3 -march=native -ffast-math -mrecip=none", "-O3 -march=native -ffast-math -mrecip=none -mprefer-vector-width=512"
// flags: -O3 -march=native

static const float RATE = 1e-2f, DECAY = 1e-3f, BETA_1 = 0.9f, BETA_2 = 0.999f, EPSILON = 1e-8f;

void kernel(const float *restrict theta, const float *restrict g, const float *restrict m,
            const float *restrict v, float *restrict out)
{
    for (size_t i = 0; i < (size_t)M * N; i++) {
        float mean = BETA_1 * m[i] + (1 - BETA_1) * g[i];
        float square = BETA_2 * v[i] + 1e-3f * g[i] * g[i];
        float root = sqrtf(square * 1e3f);
        out[i] = theta[i] - RATE * DECAY * theta[i] - RATE * mean / (root + EPSILON);
    }
}
