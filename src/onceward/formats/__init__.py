"""What is inside a record: its schema, where that is kept, and how rows and bytes become each
other.
"""
