"""Helpers of every suite: servers by hand, clients that are kept open, readers of pages, jobs in processes."""
