/* out = [x0 * cos - x1 * sin; x0 * sin + x1 * cos], with x = [x0; x1] halved by rows. */

// tune: flags in "-O2 -march=native", "-O3 -march=native", "-O3 -march=native -mprefer-vector-width=512"
// flags: -O3 -march=native
// tune: BLOCK in 512, 1024, 2048, 4096
#define BLOCK 4096

#define COLUMNS (B * H * N)
#define HALF (D / 2)

void kernel(const float *restrict x, const float *restrict freqs_cos, const float *restrict freqs_sin,
            float *restrict out)
{
    for (int start = 0; start < COLUMNS; start += BLOCK) {
        int end = start + BLOCK < COLUMNS ? start + BLOCK : COLUMNS;
        for (int d = 0; d < HALF; d++)
            for (int i = start; i < end; i++) {
                size_t low = (size_t)d * COLUMNS + i, high = (size_t)(d + HALF) * COLUMNS + i;
                out[low] = x[low] * freqs_cos[low] - x[high] * freqs_sin[low];
                out[high] = x[low] * freqs_sin[low] + x[high] * freqs_cos[low];
            }
    }
}
