/* out = lhs @ rhs, in blocks. */

// tune: flags in "-O2 -march=native", "-O3 -march=native", "-O3 -march=native -ffast-math", "-O3 -march=native -ffast-math -mrecip=none", "-O3 -march=native -ffast-math -mrecip=none -mprefer-vector-width=512"
// flags: -O3 -march=native
// tune: BLOCK_M in 1, 2, 4, 8
#define BLOCK_M 1
// tune: BLOCK_N in 64, 128, 256, 512, 1024
#define BLOCK_N 1024
// tune: BLOCK_K in 32, 64, 128, 256, 512
#define BLOCK_K 512

#define MIN(a, b) ((a) < (b) ? (a) : (b))

void kernel(const float *restrict lhs, const float *restrict rhs, float *restrict out)
{
    memset(out, 0, sizeof(float) * M * N);
    for (int k0 = 0; k0 < K; k0 += BLOCK_K)
        for (int n0 = 0; n0 < N; n0 += BLOCK_N)
            for (int m0 = 0; m0 < M; m0 += BLOCK_M)
                for (int k = k0; k < MIN(k0 + BLOCK_K, K); k++)
                    for (int m = m0; m < MIN(m0 + BLOCK_M, M); m++) {
                        float left = lhs[(size_t)m * K + k];
                        for (int n = n0; n < MIN(n0 + BLOCK_N, N); n++)
                            out[(size_t)m * N + n] += left * rhs[(size_t)k * N + n];
                    }
}
