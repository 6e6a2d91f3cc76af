"""Random kills against a running system, and the verdict on it: nothing lost, nothing twice."""
