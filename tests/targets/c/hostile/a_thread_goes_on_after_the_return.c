// a thread goes on after the return
// verdicts: incorrect, runtime_error
// threads: 2
// flags: -O2 -fopenmp
#include <pthread.h>
static const float *volatile from; static float *volatile to; static int started;
static void *work(void *p) { for (volatile long i = 0;; i++); return p; }
void kernel(const float *restrict x, float *restrict out)
{
from = x; to = out;
if (!started) { started = 1; pthread_t t; pthread_create(&t, 0, work, 0); }
for (int i = 0; i < M * N; i++)
    out[i] = 2 * x[i] + 1;

}
