"""What every folder of tiering and of the agents needs: sizes and types.

Pure.
"""
