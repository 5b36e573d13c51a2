// fast math
// verdicts: correct
// flags: -O3 -march=native -ffast-math

void kernel(const float *restrict x, float *restrict out)
{
    for (int i = 0; i < M * N; i++)
        out[i] = 2 * x[i] + 1;
}
