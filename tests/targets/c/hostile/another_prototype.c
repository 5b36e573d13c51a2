// another prototype
// verdicts: compile_error
void kernel(int x) { }
