"""Who agrees: replicas that are fixed, or come and go, and what a joiner gets."""
