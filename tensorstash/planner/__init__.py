"""From a number of bytes to a plan: pure functions on what one step was measured to save."""
