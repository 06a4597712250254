"""Many runs: configurations, their results on disk, and where they run."""
