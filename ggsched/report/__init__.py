"""Reports for people: a page with timeline, memory, splits and accounts, and tables of text."""
