"""A DataFrame of history as sealed segments of a new topic: `import_parquet`.

Root.
"""
