// syntax error
// verdicts: compile_error
void kernel(const float *x, float *out) {
  out[0] = ;
}
