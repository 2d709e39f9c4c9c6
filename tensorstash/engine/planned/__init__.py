"""A budget at work: steps are measured, planned, and held."""
