"""GPUs that are leased: which one a container gets when it asks for any that is free, and until when it has it."""
