"""What runs in the jail: the compiler, and the process that runs and times kernels. Standard library only."""
