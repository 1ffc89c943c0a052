"""What a topic has in the bucket, and how far that is behind its log: `describe_topic`.

Shell.
"""
