"""A schema registry's client. In reading order: ``client``, ``answers`` (bytes to values),
``references``; below them ``settings``, ``conversation`` and ``http`` (the way there and back).
"""
