"""What `tensorstash doctor` looks at."""
