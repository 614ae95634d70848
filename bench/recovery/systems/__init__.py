"""The systems under test: how each is started, found, hurt and ended."""
