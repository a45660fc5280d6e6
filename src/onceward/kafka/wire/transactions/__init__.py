"""One transactional id and its transactions: who holds it, what is open, and how it ends. The
driver's side."""
