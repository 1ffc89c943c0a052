"""What is sealed, read from the bucket without an agent: `segment_files`.

Its modules need the extra `agent` or `spark`; `import driftlog` does not.
Shell.
"""
