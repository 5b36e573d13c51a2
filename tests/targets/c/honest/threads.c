// threads
// verdicts: correct
// threads: 2
// flags: -O2 -fopenmp

void kernel(const float *restrict x, float *restrict out)
{
#pragma omp parallel for
for (int i = 0; i < M * N; i++) out[i] = 2 * x[i] + 1;
}
