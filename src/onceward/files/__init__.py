"""The sink for files: Spark's own writers into a hidden folder, published once decided.

In reading order: :mod:`sink` (what users build), :mod:`settings`, :mod:`target` (a pipeline and
its batches, and whether a frame fits), :mod:`publishing` (from hidden to visible, and what a crash
leaves), :mod:`manifest` (the layout that renames nothing), :mod:`reading` (``read_files``, and
what all files of a path have in common).
"""
