// works in a constructor
// verdicts: correct
static float kept[M * N];
__attribute__((constructor)) static void early(void) { for (int i = 0; i < M * N; i++) kept[i] = i; }
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;

}
