"""Which of Paddle's operators read what they saved, and which write into it."""
