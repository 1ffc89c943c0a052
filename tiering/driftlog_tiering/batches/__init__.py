"""Record batches: their header, their compression, the kernel, and the producers' state.

Pure.
"""
