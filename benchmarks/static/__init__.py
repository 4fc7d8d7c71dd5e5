"""What the ops' kernels are when compiled, for cards that need not be here: no GPU, no launch, no measurement."""
