"""Members of an outer roster, as a rank follows them, and the inner state of a joiner."""
