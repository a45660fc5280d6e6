"""Spark's file system and file writers."""
