"""One thread: the problems are tiny, and threads that wait for each other make them slow on a busy machine."""

import torch

torch.set_num_threads(1)
