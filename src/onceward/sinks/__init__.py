"""What can be written to: one folder a sink. Each offers ``engine.target`` to the engine, and a class to the user."""
