"""Many trainings: a resumable grid of runs (`grid`) and their table (`results`)."""
