"""Jars, settings and versions of a Spark session and its workers."""
