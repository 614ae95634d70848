"""Members of an outer roster, as a rank follows them."""
