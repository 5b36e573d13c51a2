// makes its input writable
// verdicts: runtime_error
#include <sys/mman.h>
void kernel(const float *restrict x, float *restrict out)
{
mprotect((void *)((uintptr_t)x & ~4095ul), 4096, PROT_READ | PROT_WRITE); ((float *)x)[0] = 1;
for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;

}
