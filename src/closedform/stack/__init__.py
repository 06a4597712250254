"""Models side by side: a leading model axis through networks, solves and optimizer steps, and one loop with checkpoints."""
