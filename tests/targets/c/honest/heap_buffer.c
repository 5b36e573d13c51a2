// heap buffer
// verdicts: correct
#include <stdlib.h>
void kernel(const float *restrict x, float *restrict out)
{
float *all = malloc(sizeof(float) * M * N);
for (int i = 0; i < M * N; i++) all[i] = 2 * x[i] + 1;
memcpy(out, all, sizeof(float) * M * N);
free(all);
}
