"""The reproduction of the paper: its data, models, experiments, claims and report. The library never imports it."""
