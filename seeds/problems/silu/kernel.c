/* out = x / (1 + exp(-x)), element by element, with the exponential of -|x|: none overflows. */

// tune: flags in "-O2 -march=native", "-O3 -march=native", "-O3 -march=native -ffast-math", "-O3 -march=native -ffast-math -mrecip=none", "-O3 -march=native -ffast-math -mrecip=none -mprefer-vector-width=512", "-O2 -march=native -ffast-math -ftree-vectorize"
// flags: -O3 -march=native
// tune: BLOCK in 256, 1024, 4096, 16384
#define BLOCK 1024

void kernel(const float *restrict x, float *restrict out)
{
    for (size_t start = 0; start < (size_t)M * N; start += BLOCK) {
        size_t end = start + BLOCK < (size_t)M * N ? start + BLOCK : (size_t)M * N;
        for (size_t i = start; i < end; i++) {
            float small = expf(-fabsf(x[i]));
            out[i] = x[i] * (x[i] >= 0 ? 1.0f : small) / (1.0f + small);
        }
    }
}
