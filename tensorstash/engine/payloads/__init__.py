"""What becomes of the content of a saved tensor: captured, encoded, stored, shared, brought back."""
