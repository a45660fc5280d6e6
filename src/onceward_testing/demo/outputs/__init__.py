"""Where the demo's job can write to: one module each, behind one interface (:mod:`output`)."""
