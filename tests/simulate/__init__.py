"""A discrete-event simulation that runs the driver's own scheduler against GPUs that no test machine has."""
