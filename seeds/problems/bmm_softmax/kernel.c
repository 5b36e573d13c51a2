/* out[b] = softmax(lhs[b] @ rhs[b], axis=1), row by row. */

// tune: flags in "-O2 -march=native", "-O3 -march=native", "-O3 -march=native -ffast-math", "-O3 -march=native -ffast-math -mrecip=none", "-O3 -march=native -ffast-math -mrecip=none -mprefer-vector-width=512"
// flags: -O3 -march=native
// tune: BLOCK_N in 64, 128, 256, 512, 1024
#define BLOCK_N 1024
// tune: BLOCK_M in 1, 2, 4, 8
#define BLOCK_M 1

#define MIN(a, b) ((a) < (b) ? (a) : (b))

static void normalise_row(float *restrict row)
{
    float most = row[0], sum = 0;
    for (int n = 1; n < N; n++)
        most = row[n] > most ? row[n] : most;
    for (int n = 0; n < N; n++) {
        row[n] = expf(row[n] - most);
        sum += row[n];
    }
    for (int n = 0; n < N; n++)
        row[n] /= sum;
}

void kernel(const float *restrict lhs, const float *restrict rhs, float *restrict out)
{
    memset(out, 0, sizeof(float) * B * M * N);
    for (int b = 0; b < B; b++) {
        const float *left = lhs + (size_t)b * M * K, *right = rhs + (size_t)b * K * N;
        float *rows = out + (size_t)b * M * N;
        for (int m0 = 0; m0 < M; m0 += BLOCK_M)
            for (int n0 = 0; n0 < N; n0 += BLOCK_N)
                for (int k = 0; k < K; k++)
                    for (int m = m0; m < MIN(m0 + BLOCK_M, M); m++)
                        for (int n = n0; n < MIN(n0 + BLOCK_N, N); n++)
                            rows[(size_t)m * N + n] += left[(size_t)m * K + k] * right[(size_t)k * N + n];
        for (int m = 0; m < M; m++)
            normalise_row(rows + (size_t)m * N);
    }
}
