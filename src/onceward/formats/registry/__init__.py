"""A schema registry's client. In reading order: ``client``, ``answers`` and ``json_limits`` (bytes
to values), ``references``; below them ``settings``, ``conversation`` and ``http`` (the way there
and back).
"""
