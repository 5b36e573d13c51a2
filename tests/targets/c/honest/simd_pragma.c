// simd pragma
// verdicts: correct
// flags: -O2 -march=native -fopenmp-simd

void kernel(const float *restrict x, float *restrict out)
{
#pragma omp simd
for (int i = 0; i < M * N; i++) out[i] = 2 * x[i] + 1;
}
