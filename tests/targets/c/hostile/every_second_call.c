// every second call
// verdicts: incorrect
static int calls;
void kernel(const float *restrict x, float *restrict out)
{
if (calls++ % 2 == 0) { for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;
 }
}
