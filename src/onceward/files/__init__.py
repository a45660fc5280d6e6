"""The sink for files: Spark's own writers into a hidden folder, published once the batch is
decided.

In reading order: :mod:`sink` (what users build), :mod:`settings`, :mod:`columns` (does a frame
fit? pure), :mod:`target` (a pipeline and its batches), :mod:`publishing` (from hidden to visible,
and what a crash leaves), :mod:`manifest` (the layout that renames nothing), :mod:`shape` (what all
files of a path have in common), :mod:`reading` (``read_files``).
"""
