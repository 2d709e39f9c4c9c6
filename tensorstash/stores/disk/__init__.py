"""The disk store: one private file, its records, its free space, and direct I/O."""
