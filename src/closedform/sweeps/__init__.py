"""Many trainings: a stack of models as one (`stacked`), a resumable grid of runs (`grid`), their table (`results`)."""
