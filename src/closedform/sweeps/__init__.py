"""Many trainings at once: a stack of models as one (`stacked`), a resumable grid of runs (`grid`), their table (`results`)."""
