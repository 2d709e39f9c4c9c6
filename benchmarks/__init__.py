"""The comparison run: real trainings under no policy and under each policy, one process each, in one table."""
