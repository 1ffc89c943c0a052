"""Jobs that rewrite topics: `compact_topics`, `merge_topics`, `repartition_topic`.

Root.
"""
