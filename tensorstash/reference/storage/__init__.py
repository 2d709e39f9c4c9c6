"""Memory, layouts, dtypes and devices."""
