"""What can be written to: one module or folder a sink, and none imports another.

Each offers ``engine.target`` to the engine, and a class to the user.
"""
