// c++
// verdicts: correct
// language: c++17
#include <algorithm>
extern "C" void kernel(const float *x, float *out)
{ std::transform(x, x + M * N, out, [](float y) { return 2 * y + 1; }); }
