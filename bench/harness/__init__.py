"""Parts that all benches share: options and results files, pages and bars, sandboxes, launchers.

Does not belong here: what is measured, and what a page says about it.
"""
