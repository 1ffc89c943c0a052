"""Garbage of every kind, made and collected under kills: does the bucket end with the live data?"""
