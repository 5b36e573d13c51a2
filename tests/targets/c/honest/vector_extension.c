// vector extension
// verdicts: correct
typedef float v8 __attribute__((vector_size(32)));
void kernel(const float *restrict x, float *restrict out)
{
for (int i = 0; i < M * N; i += 8) {
  v8 y = *(const v8 *)(x + i);
  *(v8 *)(out + i) = 2 * y + 1;
}
}
