"""Classes that users subclass: sinks, sources, and fan-out over several sinks."""
