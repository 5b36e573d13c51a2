// adds to what it wrote before
// verdicts: incorrect
static float sum[M * N];
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i++) { sum[i] += x[i]; out[i] = 2 * sum[i] + 1; }
}
