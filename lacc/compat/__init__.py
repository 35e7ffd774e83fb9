"""Other libraries' functions in, the same functions backed by compiled variants out."""
