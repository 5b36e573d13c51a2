// macro
// verdicts: correct
#define ONCE(y) (2 * (y) + 1)
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i++) out[i] = ONCE(x[i]);
}
